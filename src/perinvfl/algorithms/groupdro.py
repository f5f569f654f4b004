"""Distributed GroupDRO: Sagawa et al., Distributionally Robust Neural Networks, 2020, each client a group."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, Purpose, ServerState, Upload, erm
from perinvfl.core.hyper import LogUniform, hyper
from perinvfl.core.tree import Params
from perinvfl.data.federation import Split
from perinvfl.learning import risks
from perinvfl.learning.problem import Batches, Number, Objective, Problem


@dataclass(frozen=True)
class GroupWeighted(Algorithm):
    """The server's weights q over clients, raised by the risks uploaded in the same round."""

    uses_contexts: ClassVar[bool] = True
    needs_risks: ClassVar[bool] = True

    group_step: float = hyper(
        0.01,
        "size of the steps of the groups' weights, which grow with a group's risk so that the worst-served "
        "group counts most; larger turns to it faster; 0 keeps all weights equal, 0.01 shifts them slowly",
        symbol="η_q",
        least=0,
        search=LogUniform(1e-3, 1.0),
    )

    def init_client(self, params: Params, contexts: int) -> ClientState:
        state = super().init_client(params, contexts)
        own = next(iter(params.values())).new_full((contexts,), 1 / contexts)
        return state._replace(weights={**state.weights, "shares": own})

    def broadcast(self, server: ServerState, clients: Tensor) -> Broadcast:
        # Paper: L^i = q_i R_i, then a mean over N clients. Here: N q_i R_i, so that the mean is Σ q_i R_i and the
        # step size means the same as for FedAvg.
        if not self.sees_risks():
            return super().broadcast(server, clients)
        n = server.weights.shape[0]
        return Broadcast(server.params, n * server.weights[clients], server.round)

    def server(self, server: ServerState, update: Params, client_risks: Tensor, clients: Tensor) -> ServerState:
        if not self.sees_risks():
            return super().server(server, update, client_risks, clients)
        uploaded = torch.zeros_like(server.weights).scatter(0, clients, client_risks)
        q = risks.raise_weights(server.weights, uploaded, torch.ones_like(uploaded), self.group_step)
        return super().server(server, update, client_risks, clients)._replace(weights=q)

    def weigh_contexts(self, problem: Problem, broadcast: Broadcast, state: ClientState, data: Split) -> Broadcast:
        """Where contexts were inferred: the client's weight, shared among its contexts by weights of its own."""
        return broadcast._replace(weight=broadcast.weight * _among_present(problem, state, data)[0])

    def raise_shares(
        self, problem: Problem, upload: Upload, state: ClientState, data: Split
    ) -> tuple[Upload, ClientState]:
        """Shares raised by the risks of the contexts at ν^t; their weighted sum is the one risk that is told."""
        shares, present = _among_present(problem, state, data)
        raised = risks.raise_weights(shares, upload.risk, present, self.group_step)
        # A context that the client does not have keeps its share: it may appear when contexts are inferred again.
        kept = risks.with_absent(state.weights["shares"], raised, present)
        return upload._replace(risk=(shares * upload.risk).sum()), state._replace(
            weights={**state.weights, "shares": kept}
        )


def _among_present(problem: Problem, state: ClientState, data: Split) -> tuple[Tensor, Tensor]:
    """[K] the shares of the contexts that the client has, and which those are."""
    present = (problem.members(data.context).sum(0) > 0).float()
    own = state.weights["shares"] * present
    return own / own.sum(), present


def weighted_contexts(problem: Problem, weights: Tensor) -> Objective:
    """Σ_j w_j R_j over the client's contexts; its aux is the risks R_j."""

    def objective(logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        context_risks = risks.context_means(risks.losses(problem.task, logits, y), problem.members(context))
        return (weights * context_risks).sum(), context_risks

    return objective


def local_groupdro(problem: Problem, q: Tensor, group_step: Number) -> Objective:
    """Σ_j q_j R_j over the client's contexts, with q raised by the risks R_j; its aux is the raised q."""

    def objective(logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        member = problem.members(context)
        present = (member.sum(0) > 0).float()
        context_risks = risks.context_means(risks.losses(problem.task, logits, y), member)
        raised = risks.raise_weights(q, context_risks, present, group_step)
        return (raised * context_risks).sum(), risks.with_absent(q, raised, present)

    return objective


@dataclass(frozen=True)
class GroupDRO(GroupWeighted):
    """One global model whose objective follows the clients with the largest risk."""

    title: ClassVar[str] = "GroupDRO"
    paper: ClassVar[str] = "Sagawa et al. 2020"
    purpose: ClassVar[Purpose] = "shift"

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        if not problem.over_contexts:
            return super().client(problem, broadcast, state, batches)
        sent = self.weigh_contexts(problem, broadcast, state, batches.data)
        upload, state = super().client(problem, sent, state, batches)
        return self.raise_shares(problem, upload, state, batches.data)

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> Objective:
        if problem.over_contexts:
            return weighted_contexts(problem, broadcast.weight)
        return erm(problem, broadcast.weight)
