"""Personal models made of a shared one: APFL, Per-FedAvg, FedALA."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tests.reference.losses import risk
from tests.reference.networks import descend, norm_squared
from tests.reference.personalized import FedAvg, Personalized
from tests.reference.samples import Batch, Samples


class APFL(Personalized):
    """Deng, Kamani & Mahdavi 2020."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.alpha = [float(self.set.mixing)] * self.clients

    def mixture(self, i: int, w: nn.Module) -> nn.Module:
        mixed = copy.deepcopy(w)
        with torch.no_grad():
            for p, own, shared in zip(mixed.parameters(), self.theta[i].parameters(), w.parameters(), strict=True):
                p.copy_(self.alpha[i] * own + (1 - self.alpha[i]) * shared)
        return mixed

    def client(self, i: int, batch: Batch) -> float:
        first, slope = self.first_risk(i, batch(0)), 0.0
        for r in range(self.set.local_steps):
            mixed = self.mixture(i, self.local[i])
            loss = risk(self.task, mixed, batch(r)) + self.set.l2 * norm_squared(mixed)
            gradients = torch.autograd.grad(loss, list(mixed.parameters()))
            if r == 0:
                for g, own, w in zip(gradients, self.theta[i].parameters(), self.local[i].parameters(), strict=True):
                    slope += (g * (own - w)).sum().item()
            descend(self.local_optimizer[i], self.global_loss(i, batch(r)))
            for p, g in zip(self.theta[i].parameters(), gradients, strict=True):
                p.grad = self.alpha[i] * g
            self.theta_optimizer[i].step()
        if self.set.adaptive:
            self.alpha[i] = min(1.0, max(0.0, self.alpha[i] - self.set.personal_learning_rate * slope))
        return first

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        return self.mixture(i, self.nu)


class PerFedAvg(FedAvg):
    """Fallah, Mokhtari & Ozdaglar 2020."""

    def gradients(self, model: nn.Module, batch: Samples) -> list[Tensor]:
        loss = risk(self.task, model, batch) + self.set.l2 * norm_squared(model)
        return list(torch.autograd.grad(loss, list(model.parameters())))

    def moved(self, model: nn.Module, direction: list[Tensor], by: float) -> nn.Module:
        other = copy.deepcopy(model)
        with torch.no_grad():
            for p, g in zip(other.parameters(), direction, strict=True):
                p.add_(by * g)
        return other

    def client(self, i: int, batch: Batch) -> float:
        first, w = self.first_risk(i, batch(0)), self.local[i]
        alpha, delta = self.set.personal_learning_rate, self.set.difference
        step = 0
        for _ in range(self.set.local_steps):
            adapted = self.moved(w, self.gradients(w, batch(step)), -alpha)
            meta = self.gradients(adapted, batch(step + 1))
            step += 2
            if self.set.variant == "hessian-free":
                ahead = self.gradients(self.moved(w, meta, delta), batch(step))
                behind = self.gradients(self.moved(w, meta, -delta), batch(step))
                step += 1
                pairs = zip(meta, ahead, behind, strict=True)
                meta = [g - alpha * (a - b) / (2 * delta) for g, a, b in pairs]
            for p, g in zip(w.parameters(), meta, strict=True):
                p.grad = g
            self.local_optimizer[i].step()
        return first

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        batch = self.batch(i, places)(0)
        return self.moved(self.nu, self.gradients(self.nu, batch), -self.set.personal_learning_rate)


class FedALA(FedAvg):
    """Zhang et al. 2023. The weights W of the last layer, or of all layers, are found by gradient steps."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.theta = [copy.deepcopy(self.nu) for _ in range(self.clients)]
        self.w = [[torch.ones_like(p) for p in self.nu.parameters()] for _ in range(self.clients)]

    def weighed(self, p: nn.Parameter) -> bool:
        head = list(self.nu.parameters())[-2:]
        return self.set.adapted_part == "all" or any(p is other for other in head)

    def between(self, i: int, weights: list[Tensor]) -> nn.Module:
        model = copy.deepcopy(self.nu)
        rows = zip(model.parameters(), self.theta[i].parameters(), self.nu.parameters(), weights, strict=True)
        with torch.no_grad():
            for p, own, shared, w in rows:
                if self.weighed(shared):
                    p.copy_(own + (shared - own) * w)
        return model

    def learn(self, i: int, batch: Batch) -> list[Tensor]:
        weights = [w.clone() for w in self.w[i]]
        for s in range(self.set.weight_steps):
            model = self.between(i, weights)
            gradients = torch.autograd.grad(risk(self.task, model, batch(s)), list(model.parameters()))
            rows = zip(gradients, self.theta[i].parameters(), self.nu.parameters(), strict=True)
            for k, (g, own, shared) in enumerate(rows):
                if self.weighed(shared):
                    weights[k] = (weights[k] - self.set.weight_rate * g * (shared - own)).detach().clamp(0, 1)
        return weights

    def client(self, i: int, batch: Batch) -> float:
        self.w[i] = self.learn(i, batch)
        self.local[i].load_state_dict(self.between(i, self.w[i]).state_dict())
        first = risk(self.task, self.local[i], batch(self.set.weight_steps)).item()
        for r in range(self.set.local_steps):
            descend(self.local_optimizer[i], self.global_loss(i, batch(self.set.weight_steps + r)))
        self.theta[i].load_state_dict(self.local[i].state_dict())
        return first

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        return self.between(i, self.learn(i, self.batch(i, places)))
