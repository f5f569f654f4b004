"""A new algorithm is one file and one registration: FedProx (Li et al., Federated Optimization in Heterogeneous
Networks, 2020), FedAvg whose local steps are held near the model they started from."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms import register
from perinvfl.algorithms.base import Algorithm, Broadcast, Walk
from perinvfl.hyper import LogUniform, hyper
from perinvfl.problem import Batches, Descent, Problem


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Each local step descends R(w; D_i) + (μ/2)‖w − w^t‖²."""

    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al. 2020"

    mu: float = hyper(0.1, "pull towards the model of the round", symbol="μ", least=0, search=LogUniform(1e-3, 1.0))

    def local_step(self, problem: Problem, broadcast: Broadcast, walk: Walk, batches: Batches, batch: int) -> Walk:
        """w ← w − γ(∇R(w; D_i) + μ(w − w^t)); `walk` sums up the steps taken from w^t so far."""
        how = Descent(self.optimizer, self.learning_rate, self.l2, pull=self.mu)
        objective = self.global_objective(problem, broadcast)
        step = problem.descend(
            objective, walk.origin, batches[batch], how, walk.moments, anchor=broadcast.params, total=walk.update
        )
        return Walk(walk.origin, step.params, step.moments, step.told if walk.risk is None else walk.risk)


register("fedprox", FedProx)
