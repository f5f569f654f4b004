"""FedDG-GA: Zhang et al., Federated Domain Generalization with Generalization Adjustment, 2023, Algorithm 1."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, Purpose, ServerState, Upload, erm
from perinvfl.core import tree
from perinvfl.core.hyper import LogUniform, hyper
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Batches, Problem


@dataclass(frozen=True)
class FedDGGA(Algorithm):
    """FedAvg whose weights aᵢ grow for clients that lose most by averaging: Gᵢ = R(ν^t; Dᵢ) − R(νᵢ^{t−1}; Dᵢ).

    The one number that a client sends is Gᵢ instead of its risk. Paper: Gᵢ is measured before the clients train
    again, and weighs their next mean. Here: with the round's training, so it weighs the mean of the round after, and
    clients need not be asked twice. νᵢ^{t−1}, the client's own model at the end of the
    round in which it last took part, stays with it, so that both risks are of the same samples.
    """

    title: ClassVar[str] = "FedDG-GA"
    paper: ClassVar[str] = "Zhang et al. 2023"
    purpose: ClassVar[Purpose] = "shift"
    needs_risks: ClassVar[bool] = True

    adjustment: float = hyper(
        0.2,
        "size of the step by which clients' weights change in the first round, growing for those that lose "
        "most by averaging; it falls to 0 in the last round, so that weights settle; 0 is FedAvg, 0.2 changes "
        "a weight by at most 0.2",
        symbol="d",
        least=0,
        search=LogUniform(0.01, 1.0),
    )
    total_rounds: int = hyper(
        0,
        "number of rounds over which that step falls to 0; set it only for a run that is stopped early; 0 "
        "takes the number of rounds of the run",
        symbol="T",
        least=0,
    )

    def over(self, rounds: int) -> Algorithm:
        return self if self.total_rounds else dataclasses.replace(self, total_rounds=rounds)

    def init_client(self, params: Params, contexts: int) -> ClientState:
        return super().init_client(params, contexts)._replace(personal=tree.map(torch.clone, params))

    def broadcast(self, server: ServerState, clients: Tensor) -> Broadcast:
        a = server.weights[clients].clamp(min=1e-8)
        return super().broadcast(server, clients)._replace(weight=a * (a.shape[0] / a.sum()))

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        _, before = problem.value(erm(problem), state.personal, batches[0])
        upload, moments = self.local_training(problem, broadcast, state.moments, batches)
        local = tree.map(torch.add, broadcast.params, upload.update)  # ν_i^t
        # Paper: the server takes Σ a_i ν_i. Here: a client weighs its own update, so that a plain mean is that sum.
        update = tree.map(lambda u: broadcast.weight * u, upload.update)
        # A client that takes part for the first time has no model of its own yet.
        gap = torch.where(state.last < 0, 0.0, upload.risk - before)
        return Upload(update, gap), state._replace(personal=local, moments=moments)

    def server(self, server: ServerState, update: Params, gaps: Tensor, clients: Tensor) -> ServerState:
        """a_i ← a_i + d_t (G_i − mean G) / max_j |G_j − mean G|, from 0 to 1, Σ a_i = 1; d_t = d (1 − t/T)."""
        apart = gaps - gaps.mean()
        left = (1 - server.round / max(self.total_rounds, 1)).clamp(min=0)
        move = self.adjustment * left * apart / apart.abs().max().clamp(min=1e-12)
        a = server.weights.scatter_add(0, clients, move).clamp(0, 1)
        return super().server(server, update, gaps, clients)._replace(weights=a / a.sum())
