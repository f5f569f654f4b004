"""One invariant model for all: GroupDRO, V-REx, IRM."""

import math
from typing import Any

from torch import Tensor

from tests.reference.losses import context_risks, irm_loss, risk
from tests.reference.networks import make_optimizer, norm_squared
from tests.reference.personalized import FedAvg, FineTuning
from tests.reference.samples import Batch, Samples


class GroupDRO(FedAvg):
    """Sagawa et al. 2020, each client a group: loss N q_i R_i, q_i ∝ q_i exp(η_q R_i) after each round."""

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        weight = self.clients * self.q[i]
        return weight * risk(self.task, self.local[i], batch) + self.set.l2 * norm_squared(self.local[i])

    def after_round(self, risks: dict[int, float]) -> None:
        raised = [q * math.exp(self.set.group_step * risks.get(i, 0.0)) for i, q in enumerate(self.q)]
        self.q = [value / sum(raised) for value in raised]


class GroupDROContexts(GroupDRO):
    """Over inferred contexts: the client's weight is shared among its contexts, q_i s_ij, with Σ_j s_ij = 1.

    s_ij ∝ s_ij exp(η_q R_ij) after the client's round, R_ij the risk at ν^t, 0 where a mini-batch does not hold j. The
    server hears Σ_j s_ij R_ij.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        own = [sorted(set(share.context.tolist())) for share in self.samples]
        self.share = [{context: 1 / len(contexts) for context in contexts} for contexts in own]
        self.heard: dict[int, float] = {}  # R_ij of the client at work

    def first_risk(self, i: int, batch: Samples) -> float:
        self.heard = {context: r.item() for context, r in context_risks(self.task, self.nu, batch).items()}
        return sum(self.share[i][context] * r for context, r in self.heard.items())

    def client(self, i: int, batch: Batch) -> float:
        risk = super().client(i, batch)
        raised = {c: s * math.exp(self.set.group_step * self.heard.get(c, 0.0)) for c, s in self.share[i].items()}
        self.share[i] = {context: value / sum(raised.values()) for context, value in raised.items()}
        return risk

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        loss = self.set.l2 * norm_squared(self.local[i])
        for context, r in context_risks(self.task, self.local[i], batch).items():
            loss = loss + self.clients * self.q[i] * self.share[i][context] * r
        return loss


class VREx(FedAvg):
    """Krueger et al. 2021 over clients: (1 + 2λ(R_i − mean R)) R_i, the bracket from the round a client was last in."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ahead = [0.0] * self.clients  # R_i − mean R

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        weight = self.set.penalty_weight
        loss = (1 + 2 * weight * self.ahead[i]) * risk(self.task, self.local[i], batch)
        loss = loss + self.set.l2 * norm_squared(self.local[i])
        return loss / (weight if self.set.rescale and weight > 1 else 1.0)

    def after_round(self, risks: dict[int, float]) -> None:
        mean = sum(risks.values()) / len(risks)
        for i, r in risks.items():
            self.ahead[i] = r - mean


class Scheduled(FedAvg):
    """λ_t = min(λ, 1) before warmup_rounds, then λ; Adam forgets when it changes."""

    def weight(self) -> float:
        full = self.set.penalty_weight
        return min(full, 1.0) if self.t < self.set.warmup_rounds else full

    def divisor(self) -> float:
        return self.weight() if self.set.rescale and self.weight() > 1 else 1.0

    def before_round(self) -> None:
        if self.t == self.set.warmup_rounds and self.t > 0:
            self.forget()

    def forget(self) -> None:
        self.server_optimizer = make_optimizer(self.set.server_optimizer, self.nu, self.set.server_learning_rate)
        self.local_optimizer = [self.new_local_optimizer(i) for i in range(self.clients)]


class IRM(Scheduled):
    """Arjovsky et al. 2019, each client an environment (objective glob-irm)."""

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        model = self.local[i]
        loss = irm_loss(self.task, model, batch, self.weight(), self.paired, by_context=False)
        return (loss + self.set.l2 * norm_squared(model)) / self.divisor()


class IRMContexts(IRM):
    """IRM with every inferred context of a client an environment, each counting alike."""

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        model = self.local[i]
        loss = irm_loss(self.task, model, batch, self.weight(), self.paired, by_context=True)
        return (loss + self.set.l2 * norm_squared(model)) / self.divisor()


class IRMFT(FineTuning, IRM):
    """The paper's ablation: IRM, then fine-tuning."""
