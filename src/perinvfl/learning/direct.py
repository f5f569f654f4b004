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
    Known,
    Objective,
    SlopedObjective,
    autograd_gradient,
    functional_gradient,
)
from perinvfl.models import Model


def direct_gradient(
    model: Model, objective: Objective | FeatureObjective, params: Params, batch: Batch
) -> tuple[Params, Tensor]:
    """As `autograd_gradient`, which it leaves models to that have no backward pass of their own."""
    if model.direct is None:
        return autograd_gradient(model, objective, params, batch)
    if torch.is_grad_enabled():
        with torch.no_grad():
            return direct_gradient(model, objective, params, batch)
    features, logits, backward = model.direct(params, batch.x)
    if batch.offset is not None:
        logits = logits + batch.offset
    known = _known(objective)
    if known is not None:
        slope, aux = known[0](logits, batch.y, batch.context), known[1](logits, batch.y, batch.context)
        return backward(slope, None), aux
    of_logits, of_features, aux = _differentiated(objective, features, logits, batch)
    return backward(of_logits, of_features), aux


def batched_gradient(
    model: Model, objective: Objective | FeatureObjective, params: Params, batch: Batch
) -> tuple[Params, Tensor]:
    """As `functional_gradient`, under vmap; objectives that look at features, and other models, are left to it."""
    known = _known(objective)
    if model.batched is None or (isinstance(objective, FeatureObjective) and known is None):
        return functional_gradient(model, objective, params, batch)
    logits, kept = model.batched.forward(params, batch.x)
    if batch.offset is not None:
        logits = logits + batch.offset
    if known is not None:
        slope, aux = known[0](logits, batch.y, batch.context), known[1](logits, batch.y, batch.context)
    else:
        slope, aux = torch.func.grad(objective, has_aux=True)(logits, batch.y, batch.context)  # type: ignore[arg-type]
    return model.batched.backward(params, kept, slope), aux


def _known(objective: Objective | FeatureObjective) -> tuple[Known, Known] | None:
    """What finds its slope and its aux, of an objective that knows."""
    if not isinstance(objective, FeatureObjective | SlopedObjective) or objective.slope is None:
        return None
    assert objective.aux is not None
    return objective.slope, objective.aux


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
