"""Ditto: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, 2021, Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.base import Broadcast, ClientState, Purpose, Upload, erm
from perinvfl.algorithms.personal import Personal
from perinvfl.core.hyper import LogUniform, hyper
from perinvfl.learning.problem import Batches, Descent, Number, Problem


@dataclass(frozen=True)
class Ditto(Personal):
    """The global model by FedAvg; each client's v minimises its risk + (λ/2)‖v − w‖².

    Differs from PerInvFL's pull: no factor 2, and the anchor is the model of the start of the round.
    """

    title: ClassVar[str] = "Ditto"
    paper: ClassVar[str] = "Li et al. 2021"
    purpose: ClassVar[Purpose] = "personal"

    personal_steps: int = hyper(
        1,
        "steps of the personal model in a round; more let it adapt faster, and cost time; with 1 it takes as "
        "many as the shared model does by default",
        symbol="s",
        least=1,
        most=10**6,
    )
    pull: float | tuple[float, ...] = hyper(
        1.0,
        "strength of the pull of the personal model towards the shared one, from which it learns what others "
        "know; 0 trains it on its client's data alone, a large value makes both equal; 1 lies in between",
        symbol="λ",
        least=0,
        search=LogUniform(1e-2, 100.0),
    )

    def batches_per_round(self) -> int:
        return self.local_steps + self.personal_steps

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        upload, moments = self.local_training(problem, broadcast, state.moments, batches)
        v, v_moments = state.personal, state.personal_moments
        pull: Number = self.pull  # type: ignore[assignment]  # of a list, an executor gives each client its own
        how = Descent(self.personal_optimizer, self.personal_rate(broadcast.round), self.l2, pull)
        for s in range(self.personal_steps):  # v ← v − η(∇F + λ(v − w^t))
            batch = batches[self.local_steps + s]
            v, v_moments, _ = problem.descend(erm(problem), v, batch, how, v_moments, anchor=broadcast.params)
        return upload, state._replace(personal=v, personal_moments=v_moments, moments=moments)

    def check(self, where: str) -> None:
        super().check(where)
        self.check_pull(where, "pull", self.pull, factor=1.0)
