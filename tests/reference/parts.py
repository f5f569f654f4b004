"""Models in two parts, of which one is averaged: FedPer, LG-FedAvg, FedRep, FedBN."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tests.reference.losses import risk
from tests.reference.networks import make_optimizer, norm_squared
from tests.reference.personalized import FedAvg
from tests.reference.samples import Batch


class PartlyPersonal(FedAvg):
    """One model a client, whose shared layers are overwritten by the server's at the start of a round."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kept = [copy.deepcopy(self.nu) for _ in range(self.clients)]  # as the client left it

    def is_personal(self, layer: nn.Module) -> bool:
        raise TypeError("a subclass says which layers are personal")

    def take_own_layers(self, model: nn.Module, i: int) -> None:
        for ours, own in zip(model.children(), self.kept[i].children(), strict=True):
            if self.is_personal(ours):
                ours.load_state_dict(own.state_dict())

    def client(self, i: int, batch: Batch) -> float:
        self.take_own_layers(self.local[i], i)
        start = copy.deepcopy(self.local[i])
        first = risk(self.task, start, batch(0)).item()
        self.train(i, batch)
        self.kept[i].load_state_dict(self.local[i].state_dict())
        for ours, server in zip(self.local[i].children(), self.nu.children(), strict=True):
            if self.is_personal(ours):
                ours.load_state_dict(server.state_dict())  # nothing of it is sent
        return first

    def train(self, i: int, batch: Batch) -> None:
        for r in range(self.set.local_steps):
            self.step(self.local_optimizer[i], i, self.global_loss(i, batch(r)), list(self.local[i].parameters()))

    def step(self, optimizer: torch.optim.Optimizer, i: int, loss: Tensor, of: list[nn.Parameter]) -> None:
        """One step of some parameters: the others have no gradient, and torch.optim passes them over."""
        optimizer.zero_grad(set_to_none=True)
        for p, gradient in zip(of, torch.autograd.grad(loss, of), strict=True):
            p.grad = gradient
        optimizer.step()

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        model = copy.deepcopy(self.nu)
        self.take_own_layers(model, i)
        return model


class FedPer(PartlyPersonal):
    """Arivazhagan et al. 2019: the last layer is personal."""

    def is_personal(self, layer: nn.Module) -> bool:
        return isinstance(layer, nn.Linear) and layer.out_features == self.outputs

    @property
    def outputs(self) -> int:
        return list(self.nu.children())[-1].out_features  # type: ignore[return-value]


class LGFedAvg(FedPer):
    """Liang et al. 2020: all but the last layer is personal."""

    def is_personal(self, layer: nn.Module) -> bool:
        return isinstance(layer, nn.Linear) and not super().is_personal(layer)


class FedRep(FedPer):
    """Collins et al. 2021: the head first, then the rest with that head."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        kind, rate = self.set.personal_optimizer, self.set.personal_learning_rate
        self.head_optimizer = [make_optimizer(kind, model, rate) for model in self.local]

    def train(self, i: int, batch: Batch) -> None:
        model = self.local[i]
        head = [p for layer in model.children() if self.is_personal(layer) for p in layer.parameters()]
        body = [p for layer in model.children() if not self.is_personal(layer) for p in layer.parameters()]
        for s in range(self.set.personal_steps):
            loss = risk(self.task, model, batch(s)) + self.set.l2 * norm_squared(model)
            self.step(self.head_optimizer[i], i, loss, head)
        for r in range(self.set.local_steps):
            self.step(self.local_optimizer[i], i, self.global_loss(i, batch(self.set.personal_steps + r)), body)
