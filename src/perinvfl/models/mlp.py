"""Multi-layer perceptrons."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from perinvfl.core.tree import Params
from perinvfl.models.base import Model, Precision, arithmetic


def mlp(widths: tuple[int, ...], bias: bool, precision: Precision) -> Model:
    """ReLU network with Xavier-uniform weights and zero biases.

    Hidden widths are padded to a multiple of 16 by units with zero weights on both sides. Exact: such a unit puts out
    0 and receives no gradient. Worth 1.2x to 1.7x on a CPU for the paper's 390.
    """
    layers = len(widths) - 1
    padded = (widths[0], *(math.ceil(width / 16) * 16 for width in widths[1:-1]), widths[-1])
    dtype = arithmetic(precision)

    def init(generator: Generator) -> Params:
        params = {}
        for layer in range(layers):
            weight = torch.empty(widths[layer + 1], widths[layer])
            torch.nn.init.xavier_uniform_(weight, generator=generator)
            params[f"{layer}.weight"] = torch.zeros(padded[layer + 1], padded[layer])
            params[f"{layer}.weight"][: widths[layer + 1], : widths[layer]] = weight
            if bias:
                params[f"{layer}.bias"] = torch.zeros(padded[layer + 1])
        return params

    def linear(params: Params, layer: int, h: Tensor) -> Tensor:
        weight, own_bias = params[f"{layer}.weight"].to(dtype), params[f"{layer}.bias"].to(dtype) if bias else None
        return F.linear(h, weight, own_bias)  # [B, widths[layer + 1]]

    def features(params: Params, x: Tensor) -> Tensor:
        h = x.flatten(1).to(dtype)  # [B, inputs]
        if x.dtype == torch.uint8:
            h = h / 255
        for layer in range(layers - 1):
            h = torch.relu_(linear(params, layer, h))
        return h

    def classify(params: Params, h: Tensor) -> Tensor:
        return linear(params, layers - 1, h).float()

    def apply(params: Params, x: Tensor) -> Tensor:
        return classify(params, features(params, x))

    def strip(params: Params) -> Params:
        stripped = {}
        for layer in range(layers):
            stripped[f"{layer}.weight"] = params[f"{layer}.weight"][..., : widths[layer + 1], : widths[layer]]
            if bias:
                stripped[f"{layer}.bias"] = params[f"{layer}.bias"][..., : widths[layer + 1]]
        return stripped

    last = tuple(f"{layers - 1}.{part}" for part in ("weight", "bias"))
    size = sum(rows * columns for rows, columns in itertools.pairwise(padded)) + bias * sum(padded[1:])
    return Model(init, apply, strip, features, classify, head=last, size=size)
