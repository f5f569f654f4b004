"""Distributed GroupDRO: Sagawa et al., Distributionally Robust Neural Networks, 2020, each client a group."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl import risks
from perinvfl.algorithms.base import Algorithm, Broadcast, ServerState, erm
from perinvfl.hyper import LogUniform, hyper
from perinvfl.problem import Objective, Problem
from perinvfl.tree import Params


@dataclass(frozen=True)
class GroupWeighted(Algorithm):
    """The server's weights q over clients, raised by the risks uploaded in the same round."""

    group_step: float = hyper(
        0.01, "step size of the group weights", symbol="η_q", least=0, search=LogUniform(1e-3, 1.0)
    )

    def broadcast(self, server: ServerState, clients: Tensor) -> Broadcast:
        # Paper: L^i = q_i R_i, then a mean over N clients. Here: N q_i R_i, so that the mean is Σ q_i R_i and the
        # step size means the same as for FedAvg.
        n = server.weights.shape[0]
        return Broadcast(server.params, n * server.weights[clients], server.round)

    def server(self, server: ServerState, update: Params, client_risks: Tensor, clients: Tensor) -> ServerState:
        uploaded = torch.zeros_like(server.weights).scatter(0, clients, client_risks)
        q = risks.raise_weights(server.weights, uploaded, torch.ones_like(uploaded), self.group_step)
        return super().server(server, update, client_risks, clients)._replace(weights=q)


@dataclass(frozen=True)
class GroupDRO(GroupWeighted):
    """One global model whose objective follows the clients with the largest risk."""

    title: ClassVar[str] = "GroupDRO"
    paper: ClassVar[str] = "Sagawa et al. 2020"

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> Objective:
        return erm(problem, broadcast.weight)
