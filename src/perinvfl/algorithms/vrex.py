"""V-REx over clients: Krueger et al., Out-of-Distribution Generalization via Risk Extrapolation, 2021."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm, Broadcast, Number, Purpose, ServerState, erm
from perinvfl.core.hyper import LogUniform, hyper
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Objective, Problem


@dataclass(frozen=True)
class VREx(Algorithm):
    """One global model under mean risk + λ · variance of the clients' risks.

    The gradient of that is the mean of (1 + 2λ(R_i − mean R)) ∇R_i, so one number a client is all the traffic it needs.
    R_i is the risk of the round before: this round's would cost a second exchange.
    """

    title: ClassVar[str] = "V-REx"
    paper: ClassVar[str] = "Krueger et al. 2021"
    purpose: ClassVar[Purpose] = "shift"
    needs_risks: ClassVar[bool] = True

    penalty_weight: float = hyper(
        10.0,
        "weight of the variance of the clients' risks against their mean, so that no client is served much "
        "worse than the others; 0 is FedAvg; 10 is a moderate value, and the best depends on the data",
        symbol="λ",
        least=0,
        search=LogUniform(1.0, 1e3),
    )
    rescale: bool = hyper(
        True,
        "divide the whole loss by the penalty weight where that is above 1, so that a large weight does not "
        "also enlarge the steps; true is what IRM's authors do, false leaves the loss as it is",
    )

    def init_server(self, params: Params, clients: int) -> ServerState:
        state = super().init_server(params, clients)
        return state._replace(weights=torch.zeros_like(state.weights))  # R_i − mean R; none known yet

    def broadcast(self, server: ServerState, clients: Tensor) -> Broadcast:
        weight = 1 + 2 * self.penalty_weight * server.weights[clients]
        return Broadcast(server.params, weight / self.loss_scale(server.round), server.round)

    def loss_scale(self, round: Number) -> Number:
        if not self.rescale:
            return 1.0
        weight: Number = self.penalty_weight
        return weight.clamp(min=1.0) if isinstance(weight, Tensor) else max(weight, 1.0)

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> Objective:
        return erm(problem, broadcast.weight)

    def server(self, server: ServerState, update: Params, risks: Tensor, clients: Tensor) -> ServerState:
        uploaded = server.weights.scatter(0, clients, risks - risks.mean())
        return super().server(server, update, risks, clients)._replace(weights=uploaded)
