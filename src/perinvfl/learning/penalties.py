"""Invariance penalties, one function each, usable wherever IRM's is: in ν's loss and in θ_i's, over the same contexts.

Each takes what a client sees of one batch and gives one number, smaller where the model is more invariant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from perinvfl.data.federation import Task
from perinvfl.learning import risks

Penalty = Literal["irm", "v-rex", "fishr", "decoupling", "ib-irm"]


@dataclass(frozen=True)
class PenaltyInputs:
    """One batch as a penalty sees it."""

    task: Task
    features: Tensor  # [B, D] before the last layer
    logits: Tensor  # [B, outputs]
    y: Tensor  # [B]
    member: Tensor | None  # [B, K] how far each sample belongs to each context; None: one context of all
    paired: bool  # mini-batches: take products over two halves, which is unbiased

    def means(self, values: Tensor) -> Tensor:
        """[K, D] context means of per-sample rows [B, D]."""
        if self.member is None:
            return values.mean(0, keepdim=True)
        return self.member.t() @ values / self.member.sum(0).clamp(min=1)[:, None]

    def variance(self, values: Tensor) -> Tensor:
        """[D] variance over contexts of rows [K, D]; a context without samples here says nothing."""
        if self.member is None:
            return torch.zeros_like(values[0])
        present = (self.member.sum(0) > 0).to(values.dtype)[:, None]
        mean = (present * values).sum(0) / present.sum()
        return (present * (values - mean).square()).sum(0) / present.sum()


def irm(seen: PenaltyInputs) -> Tensor:
    """IRMv1 (Arjovsky et al. 2019): the squared gradient of each context's risk in a scale on the logits."""
    return risks.context_penalties(seen.task, seen.logits, seen.y, seen.member, seen.paired).sum()


def v_rex(seen: PenaltyInputs) -> Tensor:
    """V-REx (Krueger et al. 2021): the variance of the risks over contexts."""
    context_risks = risks.context_means(risks.losses(seen.task, seen.logits, seen.y), seen.member)
    return seen.variance(context_risks[:, None])[0]


def fishr(seen: PenaltyInputs) -> Tensor:
    """Fishr (Rame, Dancette & Cord 2022) on the last layer: contexts should agree in the variance of the gradients.

    A sample's gradient in the last layer is (prediction − label) · (feature, 1), so no second backward is needed.
    """
    residual = residuals(seen)
    features = seen.features.to(residual.dtype)
    squares = gradient_means(seen, residual.square(), features.square())  # [K, C · (D + 1)]
    return seen.variance(squares - gradient_means(seen, residual, features).square()).sum()


def decoupling(seen: PenaltyInputs) -> Tensor:
    """Spectral decoupling (Pezeshki et al. 2021): the squared norm of the logits, in each context."""
    return seen.means(seen.logits.square()).sum()


def ib_irm(seen: PenaltyInputs) -> Tensor:
    """IB-IRM (Ahuja et al. 2021): IRMv1 and a bottleneck, the variance of the features."""
    features = seen.features.float()
    if seen.member is None:
        return irm(seen) + features.var(0, correction=0).mean()
    real = seen.member.sum(1, keepdim=True)  # [B, 1]; padding has no part in the spread
    mean = (real * features).sum(0) / real.sum()
    return irm(seen) + ((real * (features - mean).square()).sum(0) / real.sum()).mean()


def residuals(seen: PenaltyInputs) -> Tensor:
    """[B, C] prediction − label."""
    if seen.task == "binary":
        return torch.sigmoid(seen.logits) - seen.y[:, None]
    if seen.task == "multiclass":
        classes = torch.arange(seen.logits.shape[1], device=seen.y.device)
        return torch.softmax(seen.logits, 1) - (seen.y[:, None] == classes).to(seen.logits.dtype)
    return 2 * (seen.logits - seen.y[:, None])


def gradient_means(seen: PenaltyInputs, residual: Tensor, features: Tensor) -> Tensor:
    """[K, C · (D + 1)] context means of residual · (feature, 1), from residuals [B, C] and features [B, D]: of every
    sample's gradient in the last layer's weights and bias, without a row for each sample."""
    member = torch.ones_like(residual[:, :1]) if seen.member is None else seen.member
    shares = member / member.sum(0).clamp(min=1)  # [B, K]
    weights = (shares[:, :, None] * residual[:, None, :]).flatten(1)  # [B, K · C]
    means = torch.cat([weights.t() @ features, weights.sum(0)[:, None]], 1)  # [K · C, D + 1]
    return means.unflatten(0, (-1, residual.shape[1])).flatten(1)


PENALTIES: dict[Penalty, Callable[[PenaltyInputs], Tensor]] = {
    "irm": irm,
    "v-rex": v_rex,
    "fishr": fishr,
    "decoupling": decoupling,
    "ib-irm": ib_irm,
}
