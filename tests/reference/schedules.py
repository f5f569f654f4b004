"""Beyond the paper: a late start of θ, step sizes that fall, a part that is personal."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.reference.networks import overwrite, set_rate
from tests.reference.perinvfl import PerInvFLIRM
from tests.reference.personalized import FTFA, FedAvg
from tests.reference.samples import Batch, Samples


class LatePerInvFLIRM(PerInvFLIRM):
    """θ_i starts from ν^t, its moments forgotten, until its client has taken part after `personal_after` rounds."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.on_its_way: set[int] = set()

    def client(self, i: int, batch: Batch) -> float:
        if i not in self.on_its_way:
            overwrite(self.theta[i], self.nu)
            self.theta_optimizer[i] = self.new_theta_optimizer(i)
        if self.t >= self.set.personal_after:
            self.on_its_way.add(i)
        return super().client(i, batch)


def half_cosine(t: int, first: int, last: int) -> float:
    """1 up to the first round, 0 from the last."""
    return (1 + math.cos(math.pi * min(max((t - first) / (last - first), 0.0), 1.0))) / 2


class CooledFedAvg(FedAvg):
    """The server's step size falls to nothing over `cooling` rounds."""

    def before_round(self) -> None:
        super().before_round()
        share = half_cosine(self.t, 0, self.set.cooling)
        set_rate(self.server_optimizer, self.set.server_learning_rate * share)


class AveragedFedAvg(FedAvg):
    """Cha et al. 2021, dense: what predicts is the mean of the models after every round since `average_after`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.past: list[nn.Module] = []

    def after_round(self, risks: dict[int, float]) -> None:
        super().after_round(risks)
        if self.t + 1 > self.set.average_after:
            self.past.append(copy.deepcopy(self.nu))

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        trained, self.nu = self.nu, self.mean()
        made = super().personal(i, places)
        self.nu = trained
        return made

    def mean(self) -> nn.Sequential:
        mean = copy.deepcopy(self.nu)
        with torch.no_grad():
            for k, p in enumerate(mean.parameters()):
                if self.past:
                    p.copy_(torch.stack([list(model.parameters())[k] for model in self.past]).mean(0))
        return mean


class AveragedFTFA(AveragedFedAvg, FTFA):
    """Fine-tuning begins at the mean."""


class CooledPerInvFL(LatePerInvFLIRM):
    """ν's step size falls until θ_i goes its own way, and θ_i's from there."""

    def before_round(self) -> None:
        super().before_round()
        share = half_cosine(self.t, 0, self.set.personal_after)
        set_rate(self.server_optimizer, self.set.server_learning_rate * share)
        for optimizer in self.theta_optimizer:
            set_rate(optimizer, self.theta_rate())

    def new_theta_optimizer(self, i: int) -> torch.optim.Optimizer:
        return set_rate(super().new_theta_optimizer(i), self.theta_rate())

    def theta_rate(self) -> float:
        return self.set.personal_learning_rate * half_cosine(self.t, self.set.personal_after, self.set.cooling)


class PartPerInvFL(PerInvFLIRM):
    """What is not personal is ν_{i,r} in training and ν in use."""

    def personal_loss(self, i: int, batch: Samples) -> Tensor:
        self.share(self.theta[i], self.local[i])
        return super().personal_loss(i, batch)

    def personal(self, i: int, places: Tensor | None) -> nn.Module:
        self.share(self.theta[i], self.nu)
        return self.theta[i]

    def share(self, theta: nn.Sequential, nu: nn.Sequential) -> None:
        layers = [(own, other) for own, other in zip(theta, nu, strict=True) if isinstance(own, nn.Linear)]
        for own, other in layers[:-1] if self.set.personal_part == "head" else layers[-1:]:
            overwrite(own, other)
