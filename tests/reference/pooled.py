"""All data in one place: one client, whose contexts are the clients that its samples came from."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.reference.invariant import Scheduled
from tests.reference.losses import context_risks, irm_loss, mean_loss, predict
from tests.reference.networks import descend, norm_squared
from tests.reference.personalized import FedAvg
from tests.reference.samples import Batch, Samples


class PooledERM(FedAvg):
    """One client's FedAvg is gradient descent."""


class PooledIRM(Scheduled):
    """Arjovsky et al. 2019, the mean over environments."""

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        model, present = self.local[i], len(set(batch.context.tolist()))
        loss = irm_loss(self.task, model, batch, self.weight(), self.paired, by_context=True) / present
        return (loss + self.set.l2 * norm_squared(model)) / self.divisor()


class PooledFishr(Scheduled):
    """Rame, Dancette & Cord 2022: gradients of every sample in the last layer, one by one, by a second backward."""

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        model = self.local[i]
        risks = list(context_risks(self.task, model, batch).values())
        variances = [self.gradient_variance(model, batch, e) for e in sorted(set(batch.context.tolist()))]
        mean = sum(variances) / len(variances)
        spread = sum(((v - mean) ** 2).sum() for v in variances) / len(variances)
        loss = sum(risks) / len(risks) + self.weight() * spread
        return (loss + self.set.l2 * norm_squared(model)) / self.divisor()

    def gradient_variance(self, model: nn.Sequential, batch: Samples, context: int) -> Tensor:
        last = list(model[-1].parameters())
        rows = []
        for place in (batch.context == context).nonzero().flatten().tolist():
            one = Samples(*(part[place : place + 1] for part in batch))
            loss = mean_loss(self.task, predict(model, one), one.y)
            gradients = torch.autograd.grad(loss, last, create_graph=True)
            rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
        stacked = torch.stack(rows)
        return ((stacked - stacked.mean(0)) ** 2).mean(0)


class PooledGroupDRO(FedAvg):
    """Sagawa et al. 2020, Algorithm 1: at each step q_g ∝ q_g exp(η_q R_g), then a step on Σ q_g R_g."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        groups = sorted(set(self.samples[0].context.tolist()))
        self.group_q = {group: 1 / len(groups) for group in groups}

    def client(self, i: int, batch: Batch) -> float:
        first = self.first_risk(i, batch(0))
        for r in range(self.set.local_steps):
            risks = context_risks(self.task, self.local[i], batch(r))
            before = sum(self.group_q[group] for group in risks)
            raised = {g: self.group_q[g] * math.exp(self.set.group_step * risk.item()) for g, risk in risks.items()}
            for group, value in raised.items():
                self.group_q[group] = before * value / sum(raised.values())
            loss = self.set.l2 * norm_squared(self.local[i])
            for group, risk in risks.items():
                loss = loss + self.group_q[group] * risk
            descend(self.local_optimizer[i], loss)
        return first
