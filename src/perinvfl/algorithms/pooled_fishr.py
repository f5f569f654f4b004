"""Fishr on all data in one place: Rame, Dancette & Cord, Fishr: Invariant Gradient Variances for Out-of-Distribution
Generalization, 2022, each client a domain."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from perinvfl.algorithms.base import Broadcast
from perinvfl.algorithms.irm import Penalized
from perinvfl.algorithms.pooled import Pooled, by_context, mean_risk
from perinvfl.core.hyper import LogUniform, hyper
from perinvfl.learning.penalties import PenaltyInputs, fishr
from perinvfl.learning.problem import FeatureObjective, Problem


@dataclass(frozen=True)
class PooledFishr(Pooled, Penalized):
    """The mean risk of the domains + λ · mean over them of ‖v_e − v‖², v_e the variance of the gradients of domain e.

    Paper: v_e is a moving average over batches. Here: of the batch alone, so batches should be large.
    """

    title: ClassVar[str] = "Fishr, pooled"
    paper: ClassVar[str] = "Rame, Dancette & Cord 2022"
    unused: ClassVar[tuple[str, ...]] = (*Pooled.unused, "invariant_by")
    uses_contexts: ClassVar[bool] = False  # its contexts are the clients, not those within them

    penalty_weight: float = hyper(
        100.0,
        "weight of the differences between clients in the variance of their gradients, so that the model "
        "learns what is learned alike everywhere; 0 is plain training, too large ends in a constant answer; "
        "100 is a middle value",
        symbol="λ",
        least=0,
        search=LogUniform(10.0, 1e4),
    )

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> FeatureObjective:
        weight, scale = self.penalty(broadcast.round), self.loss_scale(broadcast.round)

        def objective(features: Tensor, logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
            member, context_risks, present = by_context(problem, logits, y, context)
            penalty = fishr(PenaltyInputs(problem.task, features, logits, y, member, problem.paired))
            return (context_risks.sum() / present + weight * penalty) / scale, mean_risk(problem, logits, y, context)

        return FeatureObjective(objective)
