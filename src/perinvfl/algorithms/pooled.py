"""What all methods with the data in one place have in common: one client that holds everyone's samples.

They are no federated methods. They say what federation costs: the same model, risk and number of steps, but every step
sees the samples of all clients. A sample's context is the client that it came from (`preparation.pooling`).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from perinvfl.algorithms.base import Algorithm, Purpose
from perinvfl.learning import risks
from perinvfl.learning.problem import Problem


@dataclass(frozen=True)
class Pooled(Algorithm):
    """R steps a round on the data of all clients; there is nothing to aggregate."""

    purpose: ClassVar[Purpose] = "pooled"
    pooled: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = (
        *("server_learning_rate", "server_optimizer"),
        *("agreement", "matching", "trimming", "clipping"),
    )


def by_context(problem: Problem, logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[B, K] membership, [K] risks, and how many contexts have a sample in the batch."""
    member = problem.members(context)
    context_risks = risks.context_means(risks.losses(problem.task, logits, y), member)
    return member, context_risks, (member.sum(0) > 0).sum()


def mean_risk(problem: Problem, logits: Tensor, y: Tensor, context: Tensor) -> Tensor:
    """The mean loss over all samples, whatever their context."""
    return risks.context_means(risks.losses(problem.task, logits, y), problem.whole(context))[0]
