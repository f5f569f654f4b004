"""Losses, written whole and differentiated by autograd."""

import torch
from torch import Tensor, nn

from tests.reference.samples import Samples


def mean_loss(task: str, logits: Tensor, y: Tensor) -> Tensor:
    if task == "binary":
        return nn.BCEWithLogitsLoss()(logits.squeeze(1), y)
    if task == "multiclass":
        return nn.CrossEntropyLoss()(logits, y)
    return nn.MSELoss()(logits.squeeze(1), y)


def scale_gradient(task: str, logits: Tensor, y: Tensor) -> Tensor:
    """∇_{w | w = 1} R(w · f), still on the tape."""
    w = torch.ones((), dtype=logits.dtype, requires_grad=True)
    return torch.autograd.grad(mean_loss(task, w * logits, y), w, create_graph=True)[0]


def irm_penalty(task: str, logits: Tensor, y: Tensor, own: Tensor, paired: bool) -> Tensor:
    """‖∇_w R‖² over the samples marked `own`; for mini-batches the product of the two halves' gradients."""
    if not paired:
        return scale_gradient(task, logits[own], y[own]) ** 2
    place = torch.arange(len(y))
    even, odd = own & (place % 2 == 0), own & (place % 2 == 1)
    if not even.any() or not odd.any():
        return torch.zeros((), dtype=logits.dtype)
    return scale_gradient(task, logits[even], y[even]) * scale_gradient(task, logits[odd], y[odd])


def predict(model: nn.Module, batch: Samples) -> Tensor:
    return model(batch.x) + batch.offset[:, None]


def irm_loss(task: str, model: nn.Module, batch: Samples, weight: float, paired: bool, by_context: bool) -> Tensor:
    """Σ_e R_e + λ‖∇_w R_e‖², over the contexts e in the batch or over the batch as one context."""
    logits = predict(model, batch)
    labels = batch.context if by_context else torch.zeros_like(batch.context)
    total = torch.zeros((), dtype=logits.dtype)
    for context in sorted(set(labels.tolist())):
        own = labels == context
        total = total + mean_loss(task, logits[own], batch.y[own])
        total = total + weight * irm_penalty(task, logits, batch.y, own, paired)
    return total


def risk(task: str, model: nn.Module, batch: Samples) -> Tensor:
    return mean_loss(task, predict(model, batch), batch.y)


def context_risks(task: str, model: nn.Module, batch: Samples) -> dict[int, Tensor]:
    """The risk of each context in the batch."""
    logits, risks = predict(model, batch), {}
    for context in sorted(set(batch.context.tolist())):
        own = batch.context == context
        risks[context] = mean_loss(task, logits[own], batch.y[own])
    return risks
