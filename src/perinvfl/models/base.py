"""What a model is to everything else: pure functions of its parameters."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from perinvfl.core.tree import Params

Precision = Literal["float32", "tf32", "bfloat16"]
# (slope of the loss in the logits, and in the features where it looks at them) -> gradient
Backward = Callable[[Tensor, Tensor | None], Params]


class BatchedPasses(NamedTuple):
    """Forward and backward written out, for many models at once; trials may share their inputs."""

    forward: Callable[[Params, Tensor], tuple[Tensor, list[Tensor]]]  # (params, [B, ...]) -> logits, what is kept
    backward: Callable[[Params, list[Tensor], Tensor], Params]  # (params, kept, gradient of the logits) -> gradient
    # [T, n, M, ...] -> [T, n, M, room]: inputs as products take them. Inputs that every step looks at are laid out so
    # once; `forward`, `features` and `apply` take them either way.
    enter: Callable[[Tensor], Tensor]


class Model(NamedTuple):
    init: Callable[[Generator], Params]
    apply: Callable[[Params, Tensor], Tensor]  # (params, [B, ...]) -> float32 [B, outputs]
    strip: Callable[[Params], Params]  # the same model without the padding that only serves speed
    features: Callable[[Params, Tensor], Tensor]  # (params, [B, ...]) -> [B, features]: all but the last layer
    classify: Callable[[Params, Tensor], Tensor]  # (params, features) -> float32 [B, outputs]: the last layer
    # Of a model that normalises by its batch: (params, [B, ...]) -> the statistics to predict with instead, as further
    # parameters. Training never sees them; they are measured on a client's data when its model is to be used.
    statistics: Callable[[Params, Tensor], Params] | None = None
    head: tuple[str, ...] = ()  # the parameters of the last layer, by name; empty where it is not known
    norms: tuple[str, ...] = ()  # the scales and shifts of its norm layers, by name
    size: int = 0  # its parameters
    unmapped: str = ""  # why it cannot run under vmap, where it cannot
    # (params, [B, ...]) -> features, logits, and the backward pass written out; None where only autograd has it.
    direct: Callable[[Params, Tensor], tuple[Tensor, Tensor, Backward]] | None = None
    batched: BatchedPasses | None = None  # the same for use under vmap


def arithmetic(precision: Precision) -> torch.dtype:
    """The type of products; parameters and logits stay in float32."""
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def mix_statistics(statistics: Params, weights: Tensor) -> Params:
    """What clients measured, [T, n, ...], as if measured on their data together, [T, ...]; weights [T, n] sum to 1.

    The variance over all is the mean of the variances plus the variance of the means.
    """
    mixed = {}
    for name, leaf in statistics.items():
        if name.endswith("running_mean"):
            mean = _weigh(weights, leaf)
            variance = name.replace("running_mean", "running_var")
            mixed[name] = mean
            mixed[variance] = _weigh(weights, statistics[variance] + leaf.square()) - mean.square()
    return mixed


def _weigh(weights: Tensor, leaf: Tensor) -> Tensor:
    return torch.einsum("tn,tn...->t...", weights, leaf)
