"""FedAvg, and what makes it personal without invariance."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from perinvfl.data.federation import Federation
from tests.reference.losses import risk
from tests.reference.networks import descend, distance_squared, make_optimizer, network, norm_squared, overwrite
from tests.reference.samples import Batch, Samples, samples_of


class FedAvg:
    """McMahan et al. 2017; also the server and the bookkeeping of all the others."""

    def __init__(
        self, settings: Any, federation: Federation, start: dict[str, Tensor], by_size: bool, paired: bool
    ) -> None:
        self.set, self.task, self.paired, self.by_size = settings, federation.task, paired, by_size
        self.samples = samples_of(federation)
        self.clients = len(self.samples)
        self.nu = network(start)
        self.server_optimizer = make_optimizer(settings.server_optimizer, self.nu, settings.server_learning_rate)
        # One model a client that lives as long as the run, so that its optimizer's moments do.
        self.local = [copy.deepcopy(self.nu) for _ in range(self.clients)]
        self.local_optimizer = [self.new_local_optimizer(i) for i in range(self.clients)]
        self.q = [1 / self.clients] * self.clients
        self.t = 0

    def new_local_optimizer(self, i: int) -> torch.optim.Optimizer:
        return make_optimizer(self.set.optimizer, self.local[i], self.set.learning_rate)

    def own(self, name: str, i: int) -> float:
        """A setting that may be a list with one entry a client."""
        value = getattr(self.set, name)
        return value[i] if isinstance(value, tuple) else value

    def batch(self, i: int, places: Tensor | None) -> Batch:
        if places is None:
            return lambda step: self.samples[i]
        return lambda step: Samples(*(part[places[step]] for part in self.samples[i]))

    def round(self, participants: list[int], places: list[Tensor | None]) -> list[float]:
        """One round; the risks R(ν^t; D_i) of the participants."""
        self.before_round()
        sizes = [len(self.samples[i].y) if self.by_size else 1 for i in participants]
        risks = []
        for i, chosen in zip(participants, places, strict=True):
            overwrite(self.local[i], self.nu)
            risks.append(self.client(i, self.batch(i, chosen)))
        self.server_step(participants, self.shares(participants, [size / sum(sizes) for size in sizes]))
        self.after_round(dict(zip(participants, risks, strict=True)))
        self.t += 1
        return risks

    def server_step(self, participants: list[int], shares: list[float]) -> None:
        self.server_optimizer.zero_grad()
        for k, p in enumerate(self.nu.parameters()):
            moves = [list(self.local[i].parameters())[k].detach() - p.detach() for i in participants]
            p.grad = -self.together(moves, shares)  # ν ← ν − α(ν − mean ν_i)
        self.server_optimizer.step()

    def shares(self, participants: list[int], shares: list[float]) -> list[float]:
        """What each participant's move counts."""
        return shares

    def together(self, moves: list[Tensor], shares: list[float]) -> Tensor:
        return sum((share * move for share, move in zip(shares, moves, strict=True)), torch.zeros_like(moves[0]))

    def before_round(self) -> None:
        pass

    def after_round(self, risks: dict[int, float]) -> None:
        pass

    def client(self, i: int, batch: Batch) -> float:
        """R local steps of the client's copy of ν; gives back R(ν^t; D_i)."""
        first = self.first_risk(i, batch(0))
        for r in range(self.set.local_steps):
            descend(self.local_optimizer[i], self.global_loss(i, batch(r)))
        return first

    def first_risk(self, i: int, batch: Samples) -> float:
        """The one number that the server hears: R(ν^t; D_i)."""
        return risk(self.task, self.nu, batch).item()

    def global_loss(self, i: int, batch: Samples) -> Tensor:
        return risk(self.task, self.local[i], batch) + self.set.l2 * norm_squared(self.local[i])

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        return self.nu


class Personalized(FedAvg):
    """A personal model a client that lives as long as the run."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.theta = [copy.deepcopy(self.nu) for _ in range(self.clients)]
        self.theta_optimizer = [self.new_theta_optimizer(i) for i in range(self.clients)]

    def new_theta_optimizer(self, i: int) -> torch.optim.Optimizer:
        return make_optimizer(self.set.personal_optimizer, self.theta[i], self.set.personal_learning_rate)

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        return self.theta[i]


class Ditto(Personalized):
    """Li et al. 2021: v minimises F + (λ/2)‖v − w^t‖², w^t the model of the start of the round."""

    def client(self, i: int, batch: Batch) -> float:
        first = super().client(i, batch)
        for s in range(self.set.personal_steps):
            loss = risk(self.task, self.theta[i], batch(self.set.local_steps + s))
            loss = loss + self.set.l2 * norm_squared(self.theta[i])
            loss = loss + self.own("pull", i) / 2 * distance_squared(self.theta[i], self.nu)
            descend(self.theta_optimizer[i], loss)
        return first


class PFedMe(Personalized):
    """Dinh, Tran & Nguyen 2020: θ from w by K steps on one batch, then w_i −= lr · λ(w_i − θ)."""

    def client(self, i: int, batch: Batch) -> float:
        first = risk(self.task, self.nu, batch(0)).item()
        w, theta, pull = self.local[i], self.theta[i], self.own("pull", i)
        overwrite(theta, self.nu)
        self.theta_optimizer[i] = self.new_theta_optimizer(i)  # θ starts anew at w^t, and so do its moments
        for r in range(self.set.local_steps):
            for _ in range(self.set.personal_steps):
                loss = risk(self.task, theta, batch(r)) + self.set.l2 * norm_squared(theta)
                descend(self.theta_optimizer[i], loss + pull / 2 * distance_squared(theta, w))
            for p, target in zip(w.parameters(), theta.parameters(), strict=True):
                p.grad = pull * (p - target).detach()
            self.local_optimizer[i].step()
        return first


class Alone(FedAvg):
    """No collaboration: each client goes on from its own model; the server's never moves and it hears nothing."""

    def round(self, participants: list[int], places: list[Tensor | None]) -> list[float]:
        for i, chosen in zip(participants, places, strict=True):
            self.client(i, self.batch(i, chosen))
        self.t += 1
        return [0.0] * len(participants)

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        return self.local[i]


class FineTuning(FedAvg):
    """After the last round: plain gradient steps on the client's own risk, from ν."""

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        model, batch = copy.deepcopy(self.nu), self.batch(i, places)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.set.finetune_learning_rate)
        for f in range(self.set.finetune_steps):
            descend(optimizer, risk(self.task, model, batch(f)) + self.set.l2 * norm_squared(model))
        return model


class FTFA(FineTuning, FedAvg):
    """Cheng, Chadha & Duchi 2021."""
