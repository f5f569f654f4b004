"""A new algorithm is one file and one registration: FedProx (Li et al., Federated Optimization in Heterogeneous
Networks, 2020), FedAvg whose local steps are held near the model they started from."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl import tree
from perinvfl.algorithms import register
from perinvfl.algorithms.base import Algorithm, Broadcast, Walk, add_l2
from perinvfl.hyper import LogUniform, hyper
from perinvfl.problem import Batches, Problem


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Each local step descends R(w; D_i) + (μ/2)‖w − w^t‖²."""

    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al. 2020"

    mu: float | tuple[float, ...] = hyper(
        0.1, "pull towards the model of the round", symbol="μ", least=0, search=LogUniform(1e-3, 1.0)
    )

    def local_step(self, problem: Problem, broadcast: Broadcast, walk: Walk, batches: Batches, batch: int) -> Walk:
        w = walk.params()
        gradient, risk = problem.gradient(self.global_objective(problem, broadcast), w, batches[batch])
        gradient = add_l2(gradient, w, self.l2)
        gradient = tree.map(lambda g, now, start: g + self.mu * (now - start), gradient, w, broadcast.params)
        return walk.step(self.optimizer, gradient, self.learning_rate, risk)


register("fedprox", FedProx)
