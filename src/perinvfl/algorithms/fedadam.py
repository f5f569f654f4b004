"""FedAdam: Reddi et al., Adaptive Federated Optimization, 2021, Algorithm 2."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm, ServerState
from perinvfl.core import tree
from perinvfl.core.hyper import LogUniform, OneOf, hyper
from perinvfl.core.optimizers import Moments
from perinvfl.core.tree import Params


@dataclass(frozen=True)
class FedAdam(Algorithm):
    """FedAvg at the clients; the server takes Adam's step along the mean update Δ.

    As published: no correction of the first rounds, v starts at τ², and τ is large. `server_optimizer = "adam"` of
    other methods is Adam as Kingma & Ba (2015) have it.
    """

    title: ClassVar[str] = "FedAdam"
    paper: ClassVar[str] = "Reddi et al. 2021"
    unused: ClassVar[tuple[str, ...]] = ("server_optimizer",)

    server_learning_rate: float = hyper(
        0.01,
        "size of the server's step; larger is faster but less steady; a parameter moves by about this much in "
        "a round, so 0.01 is a moderate step",
        symbol="η",
        above=0,
        search=LogUniform(1e-3, 0.1),
    )
    momentum: float = hyper(
        0.9,
        "share of the mean update of earlier rounds that the server keeps; more smooths out noisy rounds, but "
        "reacts later; 0.9 averages over about 10 rounds",
        symbol="β_1",
        least=0,
        most=0.999,
    )
    memory: float = hyper(
        0.99,
        "share of the mean squared update of earlier rounds that the server keeps; more makes the step size "
        "of each coordinate change more slowly; 0.99 averages over about 100 rounds",
        symbol="β_2",
        least=0,
        most=0.999999,
    )
    adaptivity: float = hyper(
        1e-3,
        "number added to the root of the mean squared update, by which steps are divided; smaller gives each "
        "coordinate more of a step size of its own; 0.001 is the paper's",
        symbol="τ",
        above=0,
        search=OneOf((1e-4, 1e-3, 1e-2)),
    )

    def init_server(self, params: Params, clients: int) -> ServerState:
        zeros = tree.map(torch.zeros_like, params)
        second = tree.map(lambda leaf: leaf + self.adaptivity**2, zeros)
        return super().init_server(params, clients)._replace(moments=Moments(zeros, second, {}))

    def server(self, server: ServerState, update: Params, risks: Tensor, clients: Tensor) -> ServerState:
        rate = self.server_learning_rate * self.cooled(server.round, 0, self.global_cooling())
        m = tree.map(lambda m, d: self.momentum * m + (1 - self.momentum) * d, server.moments.mean, update)
        v = tree.map(self.second_moment, server.moments.square, update)
        params = tree.map(lambda x, m, v: x + rate * m / (v.sqrt() + self.adaptivity), server.params, m, v)
        return server._replace(params=params, moments=Moments(m, v, {}), round=server.round + 1)

    def second_moment(self, v: Tensor, update: Tensor) -> Tensor:
        """v ← β_2 v + (1 − β_2) Δ²."""
        return self.memory * v + (1 - self.memory) * update.square()
