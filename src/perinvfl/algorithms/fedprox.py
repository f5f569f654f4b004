"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, 2020, Algorithm 2."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.base import Algorithm, Broadcast, LocalSteps
from perinvfl.core.hyper import LogUniform, hyper
from perinvfl.errors import UserError
from perinvfl.learning.problem import Batches, Descent, Problem


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg whose clients minimise R(w; Dᵢ) + (μ/2)‖w − w^t‖²: their steps stay near the model of the round.

    The paper's inexact solution of that problem is R steps on it.
    """

    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al. 2020"

    mu: float = hyper(
        0.1,
        "strength of the pull of a client's steps towards the model it was sent, so that clients do not drift "
        "apart; 0 is FedAvg, 0.1 is a mild pull",
        symbol="μ",
        least=0,
        search=LogUniform(1e-3, 1.0),
    )

    def local_step(
        self, problem: Problem, broadcast: Broadcast, steps: LocalSteps, batches: Batches, batch: int
    ) -> LocalSteps:
        """w ← w − γ(∇R(w) + μ(w − w^t))."""
        how = Descent(self.optimizer, self.learning_rate, self.l2, pull=self.mu)
        objective = self.global_objective(problem, broadcast)
        return steps.descend(problem, objective, batches[batch], how, anchor=broadcast.params)

    def check(self, where: str) -> None:
        if self.optimizer == "sgd" and self.mu * self.learning_rate > 2:
            raise UserError(
                f"{where}.mu = {self.mu:g} with learning_rate = {self.learning_rate:g} must diverge: mu can be at most "
                f"{2 / self.learning_rate:g} with that step size."
            )
