"""SCAFFOLD: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning, 2020, Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, LocalSteps, ServerState, Upload, erm
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Batches, Problem


@dataclass(frozen=True)
class SCAFFOLD(Algorithm):
    """FedAvg whose local steps are corrected by c − c_i: the mean gradient of all clients instead of the client's own.

    Control variates travel: c to the clients, c_i⁺ − c_i back. c_i⁺ is the paper's option II, the mean gradient of the
    local steps, which costs no further pass over the data. Steps are plain: it is their sum that gives c_i⁺.
    """

    title: ClassVar[str] = "SCAFFOLD"
    paper: ClassVar[str] = "Karimireddy et al. 2020"
    unused: ClassVar[tuple[str, ...]] = ("optimizer",)

    def start_control(self, params: Params) -> Params:
        return tree.map(torch.zeros_like, params)

    def init_client(self, params: Params, contexts: int) -> ClientState:
        return super().init_client(params, contexts)._replace(control=tree.map(torch.zeros_like, params))

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        c, c_i = broadcast.control, state.control
        steps = LocalSteps.begin(problem, broadcast.params, state.moments)
        for k in range(self.local_steps):
            y = steps.params
            gradient, risk = problem.gradient(erm(problem), y, batches[k])
            steps = steps if k else steps.noting_risk(risk)
            corrected = tree.map(lambda g, p, own, all: g + 2 * self.l2 * p - own + all, gradient, y, c_i, c)
            steps = steps.move("sgd", corrected, self.learning_rate)  # y ← y − η_l(g − c_i + c)                l. 10
        upload, scale = steps.upload(), self.local_steps * self.learning_rate
        new = tree.map(lambda own, all, d: own - all - d / scale, c_i, c, upload.update)  # c_i − c + (x − y)/(K η_l)
        change = tree.map(torch.sub, new, c_i)
        return upload._replace(control=change), state._replace(control=new)  # (Δy_i, Δc_i)                     l. 13

    def server_control(self, server: ServerState, control: Params, clients: Tensor) -> Params:
        """c ← c + |S|/N · mean Δc_i.                                                                           l. 17"""
        share = clients.shape[-1] / server.weights.shape[-1]
        return tree.map(lambda c, change: c + share * change, server.control, control)
