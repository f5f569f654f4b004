"""A phase of one round in which clients send sums over their samples, and receive the sums over all clients.

What is sent has the shape of a model, so it travels as one: aggregated by whoever aggregates, secretly where that is
asked for. The "model" answers any sample with its own parameters, which is how a client comes to know the sums.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.messages import Broadcast, ClientState, ServerState, Upload
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Batches, Problem
from perinvfl.learning.slopes import are_sums, client_sums
from perinvfl.models import Model
from perinvfl.preparation.phases import Predict


@dataclass(frozen=True)
class Sums(Algorithm):
    """Clients sum up what `learning.variation` asks for."""

    title: ClassVar[str] = "Sums"
    paper: ClassVar[str] = ""

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        targets, data = broadcast.params["weight"].shape[0], batches.data
        sums = client_sums(problem.task, targets, problem.contexts, data.x, data.y, data.context)
        return Upload(sums, 0 * sums["samples"][0]), state

    def server(self, server: ServerState, update: Params, risks: Tensor, clients: Tensor) -> ServerState:
        """The mean becomes a sum."""
        total = tree.map(lambda leaf: leaf * clients.shape[-1], update)
        return server._replace(params=total, round=server.round + 1)


def sums_model(zeros: Callable[[], Params]) -> Model:
    """What is summed, as a model that answers with its parameters."""

    def apply(params: Params, x: Tensor) -> Tensor:
        answer = torch.cat([leaf.flatten() for leaf in params.values()])
        return answer.expand(len(x), -1)

    def init(generator: Generator) -> Params:
        return zeros()

    return Model(init, apply, strip=lambda params: params, features=apply, classify=lambda params, h: h)


def sums_received(zeros: Params, predict: Predict, x: Tensor) -> Params:
    """The sums over all clients, as a client learns them by asking about one of its samples.

    Where they cannot be, somebody sent what are no sums, and nobody knows who: they count for nothing.
    """
    answer = predict(x[:1])[0]
    parts = answer.split([leaf.numel() for leaf in zeros.values()])
    received = {name: part.view(leaf.shape) for (name, leaf), part in zip(zeros.items(), parts, strict=True)}
    return received if are_sums(received) else {name: torch.zeros_like(leaf) for name, leaf in received.items()}
