"""FedAvg's relatives: one model for all clients."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.reference.losses import risk
from tests.reference.networks import descend, distance_squared, norm_squared
from tests.reference.personalized import FedAvg
from tests.reference.samples import Batch, Samples


class FedProx(FedAvg):
    """Li et al. 2020: the local loss + (μ/2)‖w − w^t‖²."""

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        return super().global_loss(i, batch) + self.set.mu / 2 * distance_squared(self.local[i], self.nu)


class SCAFFOLD(FedAvg):
    """Karimireddy et al. 2020, option II."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.c = [torch.zeros_like(p) for p in self.nu.parameters()]
        self.c_i = [[torch.zeros_like(p) for p in self.nu.parameters()] for _ in range(self.clients)]
        self.changes: dict[int, list[Tensor]] = {}

    def client(self, i: int, batch: Batch) -> float:
        first, y = self.first_risk(i, batch(0)), list(self.local[i].parameters())
        for k in range(self.set.local_steps):
            gradients = torch.autograd.grad(self.global_loss(i, batch(k)), y)
            with torch.no_grad():
                for p, g, own, c in zip(y, gradients, self.c_i[i], self.c, strict=True):
                    p.sub_(self.set.learning_rate * (g - own + c))
        new = [
            own - c + (x.detach() - p.detach()) / (self.set.local_steps * self.set.learning_rate)
            for own, c, x, p in zip(self.c_i[i], self.c, self.nu.parameters(), y, strict=True)
        ]
        self.changes[i] = [after - before for after, before in zip(new, self.c_i[i], strict=True)]
        self.c_i[i] = new
        return first

    def server_step(self, participants: list[int], shares: list[float]) -> None:
        super().server_step(participants, shares)
        for k, c in enumerate(self.c):
            moved = sum(share * self.changes[i][k] for share, i in zip(shares, participants, strict=True))
            self.c[k] = c + len(participants) / self.clients * moved


class FedAdam(FedAvg):
    """Reddi et al. 2021, Algorithm 2."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.m = [torch.zeros_like(p) for p in self.nu.parameters()]
        self.v = [torch.full_like(p, self.set.adaptivity**2) for p in self.nu.parameters()]

    def server_step(self, participants: list[int], shares: list[float]) -> None:
        for k, x in enumerate(self.nu.parameters()):
            moves = [list(self.local[i].parameters())[k].detach() - x.detach() for i in participants]
            delta = self.together(moves, shares)
            self.m[k] = self.set.momentum * self.m[k] + (1 - self.set.momentum) * delta
            self.v[k] = self.second(self.v[k], delta)
            with torch.no_grad():
                x.add_(self.set.server_learning_rate * self.m[k] / (self.v[k].sqrt() + self.set.adaptivity))

    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        return self.set.memory * v + (1 - self.set.memory) * delta**2


class FedYogi(FedAdam):
    """Reddi et al. 2021: v goes up where Δ² is above it, and down where it is below."""

    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        step = (1 - self.set.memory) * delta**2
        return torch.where(v > delta**2, v - step, torch.where(v < delta**2, v + step, v))


class FedNova(FedAvg):
    """Wang et al. 2020: the server moves by the mean number of steps times the mean of the mean steps."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.taken = [0] * self.clients

    def client(self, i: int, batch: Batch) -> float:
        first, size = self.first_risk(i, batch(0)), len(batch(0).y)
        passes = self.set.epochs * len(self.samples[i].y) / size
        self.taken[i] = min(self.set.local_steps, max(1, math.ceil(passes)))
        for r in range(self.taken[i]):
            loss = risk(self.task, self.local[i], batch(r)) + self.set.l2 * norm_squared(self.local[i])
            descend(self.local_optimizer[i], loss)
        return first

    def server_step(self, participants: list[int], shares: list[float]) -> None:
        effective = sum(share * self.taken[i] for share, i in zip(shares, participants, strict=True))
        super().server_step(
            participants,
            [effective * share / self.taken[i] for share, i in zip(shares, participants, strict=True)],
        )
