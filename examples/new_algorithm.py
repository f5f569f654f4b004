"""A new algorithm is one file and one registration: FedProx (Li et al., Federated Optimization in Heterogeneous
Networks, 2020), FedAvg whose local steps are held near the model they started from."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms import (
    Algorithm,
    Batches,
    Broadcast,
    Descent,
    LocalSteps,
    LogUniform,
    Problem,
    hyper,
    register,
)


@dataclass(frozen=True)
class FedProx(Algorithm):
    """Each local step descends R(w; D_i) + (μ/2)‖w − w^t‖²."""

    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al. 2020"

    mu: float = hyper(0.1, "pull towards the model of the round", symbol="μ", least=0, search=LogUniform(1e-3, 1.0))

    def local_step(
        self, problem: Problem, broadcast: Broadcast, steps: LocalSteps, batches: Batches, batch: int
    ) -> LocalSteps:
        how = Descent(self.optimizer, self.learning_rate, self.l2, pull=self.mu)
        objective = self.global_objective(problem, broadcast)
        return steps.descend(problem, objective, batches[batch], how, anchor=broadcast.params)


register("fedprox", FedProx)
