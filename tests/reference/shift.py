"""One model for all that is to hold elsewhere: FedSR, FedIIR, FedDG-GA."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tests.reference.losses import mean_loss, predict, risk
from tests.reference.personalized import FedAvg
from tests.reference.samples import Batch, Samples


class FedIIR(FedAvg):
    """Guo et al. 2023: R_i + γ‖∇_w R_i − ḡ‖² by a second backward pass, ḡ from the round before."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.mean: list[Tensor] = []  # by parameter of the last layer; none known in the first round
        self.sent: dict[int, list[Tensor]] = {}

    def last_layer_gradient(self, model: nn.Sequential, batch: Samples) -> list[Tensor]:
        return list(torch.autograd.grad(risk(self.task, model, batch), list(model[-1].parameters()), create_graph=True))

    def client(self, i: int, batch: Batch) -> float:
        self.sent[i] = [g.detach() for g in self.last_layer_gradient(self.nu, batch(0))]
        return super().client(i, batch)

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        loss = super().global_loss(i, batch)
        for own, mean in zip(self.last_layer_gradient(self.local[i], batch), self.mean, strict=bool(self.mean)):
            loss = loss + self.set.penalty_weight * ((own - mean) ** 2).sum()
        return loss

    def server_step(self, participants: list[int], shares: list[float]) -> None:
        super().server_step(participants, shares)
        each = zip(*(self.sent[i] for i in participants), strict=True)
        new = [sum(share * g for share, g in zip(shares, parts, strict=True)) for parts in each]
        ema = self.set.memory
        self.mean = [ema * a + (1 - ema) * b for a, b in zip(self.mean, new, strict=True)] if self.mean else new


class FedSR(FedAvg):
    """Nguyen, Torr & Lim 2022 with z = μ(x): sums over samples one by one, m_y the mean over all clients."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.m: dict[int, Tensor] = {}
        self.sent: dict[int, dict[int, tuple[Tensor, float]]] = {}

    def class_of(self, y: Tensor) -> int:
        return 0 if self.task == "regression" else int(y)

    def client(self, i: int, batch: Batch) -> float:
        first, found = batch(0), dict[int, tuple[Tensor, float]]()
        for x, y in zip(first.x, first.y, strict=True):
            z, label = self.nu[:-1](x[None])[0].detach(), self.class_of(y)
            total, count = found.get(label, (torch.zeros_like(z), 0.0))
            found[label] = (total + z / len(first.y), count + 1 / len(first.y))
        self.sent[i] = found
        return super().client(i, batch)

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        loss, model = super().global_loss(i, batch), self.local[i]
        for x, y in zip(batch.x, batch.y, strict=True):
            z = model[:-1](x[None])[0]
            m = self.m.get(self.class_of(y), torch.zeros_like(z))
            loss = loss + (self.set.l2r * (z**2).sum() + self.set.cmi * ((z - m) ** 2).sum() / 2) / len(batch.y)
        return loss

    def server_step(self, participants: list[int], shares: list[float]) -> None:
        super().server_step(participants, shares)
        for label in {label for i in participants for label in self.sent[i]}:
            held = [(share, self.sent[i][label]) for share, i in zip(shares, participants, strict=True)
                    if label in self.sent[i]]  # fmt: skip
            total = torch.stack([s * total for s, (total, _) in held]).sum(0)
            self.m[label] = total / sum(s * count for s, (_, count) in held)


class FedDGGA(FedAvg):
    """Zhang et al. 2023: a_i raised by how much more the averaged model errs at client i than the client's own did."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.last: dict[int, nn.Module] = {}

    def client(self, i: int, batch: Batch) -> float:
        after = super().client(i, batch)
        known = i in self.last
        before = mean_loss(self.task, predict(self.last[i], batch(0)), batch(0).y).item() if known else after
        self.last[i] = copy.deepcopy(self.local[i])
        return after - before

    def shares(self, participants: list[int], shares: list[float]) -> list[float]:
        a = [self.q[i] for i in participants]
        return [share * len(a) * own / sum(a) for share, own in zip(shares, a, strict=True)]

    def after_round(self, gaps: dict[int, float]) -> None:
        mean = sum(gaps.values()) / len(gaps)
        largest = max(abs(gap - mean) for gap in gaps.values())
        step = self.set.adjustment * max(0.0, 1 - self.t / self.set.total_rounds)
        for i, gap in gaps.items():
            self.q[i] += step * (gap - mean) / largest if largest > 0 else 0.0
        clipped = [min(max(q, 0.0), 1.0) for q in self.q]
        self.q = [q / sum(clipped) for q in clipped]
