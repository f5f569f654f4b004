"""IRM-L2, the paper's first ablation (Table 5): Algorithm 1 with the local invariance taken away."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from perinvfl.algorithms.base import Broadcast, erm
from perinvfl.algorithms.perinvfl_options import PerInvFL
from perinvfl.learning.problem import Objective, Problem


@dataclass(frozen=True)
class IRML2(PerInvFL):
    """ν by distributed IRM; θᵢ minimises the client's plain risk + β‖θᵢ − ν‖²."""

    title: ClassVar[str] = "IRM-L2"
    paper: ClassVar[str] = "Tang, Guo & Zhang 2022, Table 5"
    unused: ClassVar[tuple[str, ...]] = ("invariance", "group_step")

    def personal_objective(self, problem: Problem, broadcast: Broadcast, q: Tensor) -> Objective:
        loss = erm(problem)
        return lambda logits, y, context: (loss(logits, y, context)[0], q)

    def personal_scale(self, broadcast: Broadcast) -> float:
        return 1.0  # no λ in the personal loss, so nothing to divide by

    def check(self, where: str) -> None:
        super().check(where)
        self.check_pull(where, "beta", self.beta, factor=2.0)
