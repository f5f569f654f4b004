"""A new algorithm is one file and one registration: FedAvg whose local steps are held near the model they started from,
as in FedProx (Li et al. 2020), but less so from round to round."""

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
class FadingProx(Algorithm):
    """Each local step of round t descends R(w; D_i) + (μ/2√(t + 1))‖w − w^t‖²."""

    title: ClassVar[str] = "FadingProx"
    paper: ClassVar[str] = "an example"

    mu: float = hyper(0.1, "pull in the first round", symbol="μ", least=0, search=LogUniform(1e-3, 1.0))

    def local_step(
        self, problem: Problem, broadcast: Broadcast, steps: LocalSteps, batches: Batches, batch: int
    ) -> LocalSteps:
        how = Descent(self.optimizer, self.learning_rate, self.l2, pull=self.mu / (broadcast.round + 1) ** 0.5)
        objective = self.global_objective(problem, broadcast)
        return steps.descend(problem, objective, batches[batch], how, anchor=broadcast.params)


register("fadingprox", FadingProx)
