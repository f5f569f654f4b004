"""Training alone: every client on its own data, no collaboration. The lower bound a federation must beat."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, Purpose, Upload
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Batches, Problem


@dataclass(frozen=True)
class Alone(Algorithm):
    """R steps per round on the client's own risk; nothing leaves the client, which sends zeros."""

    title: ClassVar[str] = "Alone"
    paper: ClassVar[str] = "-"
    purpose: ClassVar[Purpose] = "personal"
    has_global: ClassVar[bool] = False
    has_personal: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = (
        *("server_learning_rate", "server_optimizer", "cooling", "average_after"),
        *("agreement", "matching", "trimming", "clipping"),
    )

    def init_client(self, params: Params, contexts: int) -> ClientState:
        return super().init_client(params, contexts)._replace(personal=tree.map(torch.clone, params))

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        own = broadcast._replace(params=state.personal)
        taken, moments = self.local_training(problem, own, state.moments, batches)
        theta = tree.map(torch.add, state.personal, taken.update)
        nothing = Upload(tree.map(torch.zeros_like, theta), torch.zeros_like(taken.risk))
        return nothing, state._replace(personal=theta, moments=moments)

    def personal(self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches) -> Params:
        return state.personal
