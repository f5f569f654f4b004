"""PerInvFL with what was added beyond the paper, composed around Algorithm 1: a late start of θ, which part of the
model is personal, and shares of inferred contexts."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from perinvfl.algorithms.base import Purpose
from perinvfl.algorithms.groupdro import weighted_contexts
from perinvfl.algorithms.messages import Broadcast, ClientState, Upload
from perinvfl.algorithms.parts import join
from perinvfl.algorithms.perinvfl import Algorithm1
from perinvfl.core import optimizers, tree
from perinvfl.core.hyper import hyper
from perinvfl.core.tree import Params
from perinvfl.errors import UserError
from perinvfl.learning.problem import Batch, Batches, FeatureObjective, Number, Objective, Problem, Step


@dataclass(frozen=True)
class PerInvFL(Algorithm1):
    """A global invariant model ν over clients, and at each client a personal model θᵢ that is invariant over the
    client's own contexts and stays near ν."""

    title: ClassVar[str] = "PerInvFL"
    paper: ClassVar[str] = "Tang, Guo & Zhang 2022"
    purpose: ClassVar[Purpose] = "shift"

    personal_after: int = hyper(
        0,
        "number of rounds in which the personal model only follows the shared one, before it trains on its "
        "own; it then starts from a good model, which helps where clients have few samples; 0 trains it from "
        "the first round on",
        least=0,
        stacks=True,
        later=True,
    )
    personal_part: Literal["all", "features", "head"] = hyper(
        "all",
        "part of the model that is personal, the rest being taken from the shared one; a smaller part "
        "overfits less; all is the paper's, head is the last layer, features are all others",
        later=True,
    )

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        state = self.late_start(broadcast, state)
        if not self.shares_contexts(problem):
            return super().client(problem, broadcast, state, batches)
        sent = self.weigh_contexts(problem, broadcast, state, batches.data)
        upload, state = super().client(problem, sent, state, batches)
        return self.raise_shares(problem, upload, state, batches.data)

    # A late start ---------------------------------------------------------------------------------------------

    def late_start(self, broadcast: Broadcast, state: ClientState) -> ClientState:
        """θ_i at ν^t, until it goes its own way: the first time that its client takes part after so many rounds."""
        if isinstance(self.personal_after, int) and self.personal_after == 0:
            return state
        early = state.last < self.personal_after
        theta = tree.map(lambda t, v: torch.where(early, v, t), state.personal, broadcast.params)
        return state._replace(personal=theta, personal_moments=optimizers.forget(state.personal_moments, early))

    def eta(self, round: Number) -> Number:
        return self.personal_rate(round, self.personal_after)

    def global_cooling(self) -> Number:
        """ν is at rest when θ_i goes its own way, if it ever does so late."""
        after = self.personal_after
        return torch.where(after > 0, after, self.cooling) if isinstance(after, Tensor) else after or self.cooling

    # A personal part ------------------------------------------------------------------------------------------

    def personal_step(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batch: Batch, nu: Params
    ) -> Step:
        theta = self.with_shared_part(problem, state.personal, nu)
        return super().personal_step(problem, broadcast, state._replace(personal=theta), batch, nu)

    def personal(self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches) -> Params:
        return self.with_shared_part(problem, state.personal, broadcast.params)

    def with_shared_part(self, problem: Problem, theta: Params, nu: Params) -> Params:
        """θ_i with what is not personal taken from ν."""
        return theta if self.personal_part == "all" else join(problem.model, self.personal_part, theta, nu)

    # Shares of inferred contexts ------------------------------------------------------------------------------

    def shares_contexts(self, problem: Problem) -> bool:
        return self.invariance == "groupdro" and problem.over_contexts

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> Objective | FeatureObjective:
        if self.shares_contexts(problem):
            return weighted_contexts(problem, broadcast.weight)
        return super().global_objective(problem, broadcast)

    def check(self, where: str) -> None:
        if 0 < self.cooling <= self.personal_after:
            raise UserError(
                f"{where}.cooling = {self.cooling} leaves the personal model no step: it must be more than "
                f"personal_after = {self.personal_after}."
            )
        super().check(where)
