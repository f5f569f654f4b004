"""Gradients without a tape through the network: what an MLP needs is written out.

For one client at a time these are the same operations in the same order as autograd's, so the same numbers to the last
bit, without the time that a tape costs at every step. Under vmap, many models are a few batched products
(`models.dense`). An objective that knows its own slope in the logits needs no tape at all; any other is differentiated
by autograd, in the logits and the features alone.
"""

import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.learning.problem import (
    Batch,
    FeatureObjective,
    Objective,
    Slope,
    SlopedObjective,
    autograd_gradient,
    functional_gradient,
)
from perinvfl.models import Model


@torch.no_grad()
def direct_gradient(
    model: Model, objective: Objective | FeatureObjective, params: Params, batch: Batch
) -> tuple[Params, Tensor]:
    """As `autograd_gradient`, which it leaves models to that have no backward pass of their own."""
    if model.direct is None:
        return autograd_gradient(model, objective, params, batch)
    features, logits, backward = model.direct(params, batch.x)
    if batch.offset is not None:
        logits = logits + batch.offset
    slope = _known_slope(objective)
    if slope is not None:
        of_logits, aux = slope(logits, batch.y, batch.context)
        return backward(of_logits, None), aux
    of_logits, of_features, aux = _differentiated(objective, features, logits, batch)
    return backward(of_logits, of_features), aux


def batched_gradient(
    model: Model, objective: Objective | FeatureObjective, params: Params, batch: Batch
) -> tuple[Params, Tensor]:
    """As `functional_gradient`, under vmap; objectives that look at features, and other models, are left to it."""
    slope = _known_slope(objective)
    if model.batched is None or (isinstance(objective, FeatureObjective) and slope is None):
        return functional_gradient(model, objective, params, batch)
    logits, kept = model.batched.forward(params, batch.x)
    if batch.offset is not None:
        logits = logits + batch.offset
    if slope is None:
        slope = torch.func.grad(objective, has_aux=True)  # type: ignore[arg-type]
    of_logits, aux = slope(logits, batch.y, batch.context)
    return model.batched.backward(params, kept, of_logits), aux


def _known_slope(objective: Objective | FeatureObjective) -> Slope | None:
    return objective.slope if isinstance(objective, FeatureObjective | SlopedObjective) else None


def _differentiated(
    objective: Objective | FeatureObjective, features: Tensor, logits: Tensor, batch: Batch
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The slopes of an objective in the logits and, where it looks at them, in the features; and its aux."""
    logits = logits.detach().requires_grad_()
    with torch.enable_grad():
        if isinstance(objective, FeatureObjective):
            features = features.detach().requires_grad_()
            value, aux = objective.value(features, logits, batch.y, batch.context)
            of_logits, of_features = torch.autograd.grad(value, (logits, features), allow_unused=True)
        else:
            value, aux = objective(logits, batch.y, batch.context)
            of_logits, of_features = *torch.autograd.grad(value, (logits,)), None
    return torch.zeros_like(logits) if of_logits is None else of_logits, of_features, aux.detach()
