"""IRM on all data in one place: Arjovsky et al., Invariant Risk Minimization, 2019, each client an environment."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from perinvfl.algorithms.base import Broadcast
from perinvfl.algorithms.irm import Penalized
from perinvfl.algorithms.pooled import Pooled, by_context, mean_risk
from perinvfl.learning import risks
from perinvfl.learning.problem import Objective, Problem


@dataclass(frozen=True)
class PooledIRM(Pooled, Penalized):
    """IRMv1: the mean over environments e of R_e + λ ‖∇_w R_e(w·f)‖²."""

    title: ClassVar[str] = "IRM, pooled"
    paper: ClassVar[str] = "Arjovsky et al. 2019"
    unused: ClassVar[tuple[str, ...]] = (*Pooled.unused, "invariant_by")
    uses_contexts: ClassVar[bool] = False  # its contexts are the clients, not those within them

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> Objective:
        weight, scale = self.penalty(broadcast.round), self.loss_scale(broadcast.round)

        def objective(logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
            member, context_risks, present = by_context(problem, logits, y, context)
            penalties = risks.context_penalties(problem.task, logits, y, member, problem.paired)
            # Paper: the sum over environments. Here: the mean, so that a step size means the same as for IRM.
            value = (context_risks.sum() + weight * penalties.sum()) / present
            return value / scale, mean_risk(problem, logits, y, context)

        return objective
