"""FedIIR: Guo et al., Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships,
2023, Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, Number, Purpose, ServerState, Upload, erm
from perinvfl.core import tree
from perinvfl.core.hyper import LogUniform, hyper
from perinvfl.core.tree import Params
from perinvfl.learning.last_layer import check_last_layer, last_layer_gradient, last_layer_shape
from perinvfl.learning.problem import Batches, FeatureObjective, Problem


@dataclass(frozen=True)
class FedIIR(Algorithm):
    """R_i + γ ‖∇_w R_i − ḡ‖², w the last layer and ḡ the mean over clients of that gradient.

    Paper: ḡ of this round, by a first exchange of gradients at ν^t. Here: of the round before, so one exchange is
    enough; the first round has no penalty. Of the gradients the server needs the mean alone. The weight is the
    authors' default; the range reaches from theirs to what invariance penalties take on the coloured digits.
    """

    title: ClassVar[str] = "FedIIR"
    purpose: ClassVar[Purpose] = "shift"
    paper: ClassVar[str] = "Guo et al. 2023"

    penalty_weight: float = hyper(
        0.001,
        "weight of the squared distance between a client's gradient in the last layer and the mean over "
        "clients, so that they agree on what predicts the label; 0 is FedAvg, 0.001 is the authors'",
        symbol="γ",
        least=0,
        search=LogUniform(1e-4, 100.0),
    )
    memory: float = hyper(
        0.95,
        "share of the mean gradient kept from one round to the next, so that no single round decides it; 0 "
        "uses the last round alone, 0.95 averages over about 20 rounds",
        symbol="ema",
        least=0,
        most=1,
    )

    def start_control(self, params: Params) -> Params:
        return {"gradient": next(iter(params.values())).new_zeros(last_layer_shape(params))}

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        check_last_layer(self.title, problem.model, broadcast.params)
        own = FeatureObjective(lambda *seen: (seen[1].sum(), last_layer_gradient(problem, *seen)))
        _, gradient = problem.value(own, broadcast.params, batches[0])  # ∇_w R(ν^t; D_i)
        upload, state = super().client(problem, broadcast, state, batches)
        return upload._replace(control={"gradient": gradient}), state

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> FeatureObjective:
        weight: Number = self.penalty_weight * torch.as_tensor(broadcast.round > 0)
        mean, risk_of = broadcast.control["gradient"], erm(problem)

        def objective(features: Tensor, logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
            risk, aux = risk_of(logits, y, context)
            apart = last_layer_gradient(problem, features, logits, y, context) - mean
            return risk + weight * apart.square().sum(), aux

        return FeatureObjective(objective)

    def server_control(self, server: ServerState, control: Params, clients: Tensor) -> Params:
        """ḡ ← ema · ḡ + (1 − ema) · mean g_i; the first mean is taken whole."""
        kept = self.memory * torch.as_tensor(server.round > 0)
        return tree.map(lambda old, new: kept * old + (1 - kept) * new, server.control, control)
