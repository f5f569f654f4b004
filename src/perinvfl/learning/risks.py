"""Risks and invariance penalties: pure functions of (logits, y, context) for one client.

Contexts are labels on samples, so a per-context risk is a masked mean; -1 marks padding. IRMv1 (Arjovsky et al. 2019)
needs no double backward: the gradient of the risk in a scalar classifier w at w = 1 is itself a mean over samples.
"""

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from perinvfl.data.federation import Task


def losses(task: Task, logits: Tensor, y: Tensor) -> Tensor:
    """[B] loss of each sample from [B, outputs] logits."""
    if task == "binary":
        return F.binary_cross_entropy_with_logits(logits[:, 0], y, reduction="none")
    if task == "multiclass":
        return -torch.log_softmax(logits, 1).gather(1, y[:, None])[:, 0]
    return (logits[:, 0] - y).square()


def scale_gradients(task: Task, logits: Tensor, y: Tensor) -> Tensor:
    """[B] derivative of each sample's loss in w at w = 1, for the predictor w * logits."""
    if task == "binary":
        z = logits[:, 0]
        return (torch.sigmoid(z) - y) * z
    if task == "multiclass":
        expected = (torch.softmax(logits, 1) * logits).sum(1)
        return expected - logits.gather(1, y[:, None])[:, 0]
    z = logits[:, 0]
    return 2 * (z - y) * z


def membership(context: Tensor, contexts: int) -> Tensor:
    """[B, K] one where a sample belongs to a context; padding belongs to none.

    Shares (floats from 0 to 1) instead of labels say how far a sample belongs to the second of two contexts.
    """
    if context.is_floating_point():
        return torch.stack([1 - context, context], 1) * (context >= 0)[:, None]
    return (context[:, None] == torch.arange(contexts, device=context.device)).to(torch.float32)


def whole(context: Tensor, padded: bool = True) -> Tensor | None:
    """[B, 1] membership in D_i as a whole, every real sample; None where all are real."""
    return (context >= 0).to(torch.float32)[:, None] if padded else None


def context_means(values: Tensor, member: Tensor | None) -> Tensor:
    """[K] mean of values in each context; 0 where the context has no sample. No membership: one context of all."""
    if member is None:
        return values.mean(0, keepdim=True)
    return (values[:, None] * member).sum(0) / member.sum(0).clamp(min=1)


def context_penalties(task: Task, logits: Tensor, y: Tensor, member: Tensor | None, paired: bool) -> Tensor:
    """[K] IRMv1 penalty of each context: the squared scale-gradient.

    paired: the product over two halves of the batch (even and odd places), unbiased for a mini-batch drawn with
    replacement; the square of one mini-batch mean is biased upward by its variance. A context that is absent from one
    half counts as 0 there, so batches must be large enough to hold every context twice.
    """
    gradients = scale_gradients(task, logits, y)
    if not paired:
        return context_means(gradients, member).square()
    even, odd = (None, None) if member is None else (member[::2], member[1::2])
    return context_means(gradients[::2], even) * context_means(gradients[1::2], odd)


def binary_risk(logits: Tensor, y: Tensor, context: Tensor) -> Tensor:
    """The mean loss of a binary task over all samples, where every sample is real."""
    return losses("binary", logits, y).mean()


def binary_risk_slope(logits: Tensor, y: Tensor, weight: float | Tensor) -> Tensor:
    """[B, 1] slope in the logits of weight · mean loss of a binary task, to the bit what autograd finds."""
    return ((torch.sigmoid(logits[:, 0]) - y) * (_single(weight) / len(y)))[:, None]


def binary_irm_slope(
    logits: Tensor, y: Tensor, member: Tensor | None, paired: bool, weight: float | Tensor, scale: float | Tensor
) -> Tensor:
    """[B, 1] slope in the logits of (Σ risks + weight · Σ `context_penalties`) / scale, as autograd finds it."""
    z = logits[:, 0]
    chance = torch.sigmoid(z)
    residual = chance - y
    gradients = residual * z
    whole = _single(1 / _single(scale))
    pull = _single(whole * _single(weight))
    if paired:
        of_gradients = _of_each_half(gradients, member, pull)
    else:
        of_gradients = _mean_slope(pull * (2 * context_means(gradients, member)), member, len(z))
    of_losses = residual * _mean_slope(whole, member, len(z))
    return (of_losses + (of_gradients * z * (1 - chance) * chance + of_gradients * residual))[:, None]


def _of_each_half(gradients: Tensor, member: Tensor | None, pull: float | Tensor) -> Tensor:
    """[B] slope in the gradients of pull · the product of their means over even and over odd places."""
    even, odd = (None, None) if member is None else (member[::2], member[1::2])
    first, second = context_means(gradients[::2], even), context_means(gradients[1::2], odd)
    halves = (len(gradients) + 1) // 2, len(gradients) // 2
    slopes = _mean_slope(pull * second, even, halves[0]), _mean_slope(pull * first, odd, halves[1])
    if member is None:  # the same all over a half
        return torch.cat(slopes).repeat(halves[0])[: len(gradients)]
    found = torch.empty_like(gradients)
    found[::2], found[1::2] = slopes
    return found


def _mean_slope(slope: float | Tensor, member: Tensor | None, samples: int) -> Tensor:
    """Of a function of the `context_means` with this slope in them, [K], its slope in the values; [B], or one."""
    if member is None:
        return slope / samples  # type: ignore[return-value]  # of a number, a number
    slope = slope if isinstance(slope, Tensor) else member.new_full((), slope)
    return (slope / member.sum(0).clamp(min=1) * member).sum(1)


def _single(number: float | Tensor) -> float | Tensor:
    """A plain number as float32 rounds it, so that arithmetic with it comes to what tensors would."""
    return number if isinstance(number, Tensor) else ctypes.c_float(number).value


def raise_weights(q: Tensor, risks: Tensor, present: Tensor, step: float | Tensor) -> Tensor:
    """GroupDRO's update (Sagawa et al. 2020): q_g <- q_g exp(step * R_g), normalised over the groups present."""
    raised = q * torch.exp(step * risks.detach()) * present
    return raised / raised.sum(-1, keepdim=True)


def with_absent(q: Tensor, raised: Tensor, present: Tensor) -> Tensor:
    """[K] the weights of all groups: those that are absent keep theirs, those present share what they had together."""
    return torch.where(present > 0, raised * (q * present).sum(), q)


def measure(task: Task, logits: Tensor, y: Tensor, context: Tensor, groups: int = 0) -> Tensor:
    """[1 + groups] accuracy (mean squared error for regression) over the real samples, then how many samples of each
    (class, context) of a binary task are right; group 2 · class + context."""
    if task == "binary":
        right = ((logits[:, 0] > 0) == (y > 0.5)).float()
    elif task == "multiclass":
        right = (logits.argmax(1) == y).float()
    else:
        right = (logits[:, 0] - y).square()
    score = context_means(right, whole(context))
    if not groups:
        return score
    group = torch.where(context < 0, -1, 2 * y.long() + context)
    return torch.cat([score, (right[:, None] * membership(group, groups)).sum(0)])
