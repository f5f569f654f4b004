"""A model in two parts, one of which stays with its client: what FedPer, LG-FedAvg, FedRep, FedBN and PerInvFL's
`personal_part` have in common."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, LocalSteps, Purpose, Upload
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.errors import UserError
from perinvfl.learning.problem import Batches, Problem
from perinvfl.models import Model

Part = Literal["features", "head", "norms"]


def names_of(model: Model, part: Part, params: Params) -> frozenset[str]:
    """The parameters of a part: the head is the last layer, the features are all before it."""
    if part == "norms":
        names = frozenset(model.norms)
        if not names:
            raise UserError(
                "The norm layers of the model are to stay with each client, and this model has none; "
                'model.kind = "resnet18" has norm layers, and a module of your own may.'
            )
        return names
    if not model.head:
        raise UserError(
            "The last layer of the model is to be treated apart from the rest, and this model does not say which layer "
            "is its last."
        )
    head = frozenset(params) & frozenset(model.head)
    if len(head) == len(params):
        raise UserError(
            "The last layer of the model is to be treated apart from the rest, and this model has no other layer: it "
            "cannot be split in two parts."
        )
    return head if part == "head" else frozenset(params) - head


def join(model: Model, part: Part, own: Params, shared: Params) -> Params:
    """The part from `own`, and the rest from `shared`."""
    names = names_of(model, part, shared)
    return {name: own[name] if name in names else leaf for name, leaf in shared.items()}


@dataclass(frozen=True)
class PartlyPersonal(Algorithm):
    """Each client has one model: a part of it is its own, the rest is averaged over clients.

    The personal part is neither sent nor received: the server has the shared part alone. No model is the same for all
    clients.
    """

    purpose: ClassVar[Purpose] = "personal"
    has_global: ClassVar[bool] = False
    has_personal: ClassVar[bool] = True
    personal_part: ClassVar[Part]

    def init_client(self, params: Params, contexts: int) -> ClientState:
        return super().init_client(params, contexts)._replace(personal=tree.map(torch.clone, params))

    def shared_part(self, model: Model, params: Params) -> Params:
        own = names_of(model, self.personal_part, params)
        return {name: leaf for name, leaf in params.items() if name not in own}

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        """R steps of both parts together; the shared part is sent."""
        steps = LocalSteps.begin(problem, self.own_model(broadcast, state), state.moments)
        for r in range(self.local_steps):
            steps = self.local_step(problem, broadcast, steps, batches, r)
        return steps.upload(broadcast.params), state._replace(personal=steps.params, moments=steps.moments)

    def own_model(self, broadcast: Broadcast, state: ClientState) -> Params:
        """The shared part as it was sent, the rest its own."""
        return {name: broadcast.params.get(name, leaf) for name, leaf in state.personal.items()}

    def personal(self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches) -> Params:
        return self.own_model(broadcast, state)
