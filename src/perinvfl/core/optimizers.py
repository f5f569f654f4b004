"""Steps as pure functions: (parameters, gradient, moments) -> (new parameters, new moments)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from perinvfl.core import tree
from perinvfl.core.tree import Params

Kind = Literal["sgd", "adam"]


class Moments(NamedTuple):
    """Adam's memory; empty for plain gradient steps."""

    mean: Params
    square: Params
    steps: Params  # {"count": number of steps taken}


def start(kind: Kind, params: Params) -> Moments:
    if kind == "sgd":
        return Moments({}, {}, {})
    zeros = tree.map(torch.zeros_like, params)
    return Moments(zeros, tree.map(torch.clone, zeros), {"count": next(iter(params.values())).new_zeros(())})


def step(
    kind: Kind,
    params: Params,
    gradient: Params,
    moments: Moments,
    rate: float | Tensor,
    overwrite: bool = False,
) -> tuple[Params, Moments]:
    """The paper's plain step params − rate · gradient, or Adam's (Kingma & Ba 2015, with its usual constants).

    No parameters ({}) stand for zeros: what comes back is then the step itself. overwrite: the new parameters may be
    written where the gradient was, which is read last here.
    """
    if kind == "sgd":
        return _add(params, gradient, -rate, overwrite), moments
    count = moments.steps["count"] + 1
    mean = tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments.mean, gradient)
    square = tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments.square, gradient)
    mean_scale, square_scale = 1 / (1 - 0.9**count), 1 / (1 - 0.999**count)
    move = tree.map(lambda m, v: -rate * (m * mean_scale) / ((v * square_scale).sqrt() + 1e-8), mean, square)
    return _add(params, move, 1.0), Moments(mean, square, {"count": count})


def _add(params: Params, move: Params, factor: float | Tensor, overwrite: bool = False) -> Params:
    """params + factor · move, in one pass where the factor is a plain number."""
    if not params:
        return tree.map(lambda m: m.mul_(factor), move) if overwrite else tree.map(lambda m: m * factor, move)
    # Compiled, torch 2.13 turns add(p, x @ y, alpha=a) into p + x @ y: the factor is lost.
    if isinstance(factor, Tensor) or torch.compiler.is_compiling():
        return tree.map(lambda p, m: p + factor * m, params, move)
    if overwrite:
        return tree.map(lambda p, m: torch.add(p, m, alpha=factor, out=m), params, move)
    return tree.map(lambda p, m: torch.add(p, m, alpha=factor), params, move)


def forget(moments: Moments, when: bool | Tensor) -> Moments:
    """Moments set to zero where `when` holds: a penalty that switches on makes the old ones wrong."""
    if isinstance(when, bool) and not when:
        return moments
    return tree.over(lambda m: torch.where(torch.as_tensor(when, device=m.device), torch.zeros_like(m), m), moments)
