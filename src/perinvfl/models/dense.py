"""Forward and backward of a multi-layer perceptron, written out for many models at once.

Two operations that vmap knows a better way for than one product after another: all models of all clients and trials
are batched products, and trials that look at the same images share them. A layer's bias is one more column of its
weights, met by a unit that is always 1, so that adding it and summing its gradient cost no pass over memory.

Shapes, inside: T trials, n clients, M samples; weights [T, n, out, in], inputs [1 or T, n, M, in].
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.models.fused.units import outputs_of, pays, slopes_of

Widths = tuple[int, ...]  # inputs, hidden layers, outputs: as they are, without padding


def forward(widths: Widths, params: Params, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """Float32 logits [M, outputs], and what `backward` needs of the way there."""
    weights = _with_bias(widths, params, dtype)
    room = weights[0].shape[-1]
    inputs = x if x.shape[1:] == (room,) else _with_one(x.flatten(1), dtype, room)
    kept = _Forward.apply(inputs, *weights)
    return kept[-1].float(), [inputs, *kept[:-1], *weights]


def enter(widths: Widths, x: Tensor, dtype: torch.dtype) -> Tensor:
    """[T, n, M, ...] inputs as `forward` would make them anew at every step."""
    return _with_one(x.flatten(3), dtype, _room(widths[0]))


def backward(widths: Widths, params: Params, kept: list[Tensor], slope: Tensor) -> Params:
    """The gradient of every parameter, given that of the logits, [M, outputs]."""
    gradients = _Backward.apply(slope.to(kept[0].dtype), *kept)
    found = {}
    for layer, gradient in enumerate(gradients):
        wide, high = widths[layer], widths[layer + 1]
        weight = params[f"{layer}.weight"]
        found[f"{layer}.weight"] = _to_shape(gradient, weight, high, wide)
        if f"{layer}.bias" in params:
            found[f"{layer}.bias"] = _to_shape(gradient[:, wide], params[f"{layer}.bias"], high)
    return {name: found[name] for name in params}


def _to_shape(gradient: Tensor, param: Tensor, *real: int) -> Tensor:
    """Of a parameter with so many real rows and columns; what pads it gets no gradient."""
    if all(size <= have for size, have in zip(param.shape, gradient.shape, strict=True)):
        gradient = gradient[tuple(slice(size) for size in param.shape)]
        return gradient.to(param.dtype) if param.shape == real else gradient * _ones(param.shape, real, param.device)
    own = gradient.new_zeros(param.shape, dtype=param.dtype)
    there = tuple(slice(size) for size in real)
    own[there] = gradient[there]
    return own


# Kept for good: a recorded round reads them at every replay.


@cache
def _ones(shape: tuple[int, ...], real: tuple[int, ...], device: torch.device) -> Tensor:
    """1 where there is a parameter, 0 where there is padding."""
    ones = torch.zeros(shape, device=device)
    ones[tuple(slice(size) for size in real)] = 1.0
    return ones


@cache
def _one_at(place: int, length: int, device: torch.device) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(place), length).float().to(device)


@cache
def _nothing(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.zeros(rows, columns, device=device)


def _with_bias(widths: Widths, params: Params, dtype: torch.dtype) -> list[Tensor]:
    """[out, in] of each layer, its bias in the column after the last real one, and below it the unit that is 1."""
    layers = len(widths) - 1
    weights = []
    for layer in range(layers):
        wide, high = widths[layer], widths[layer + 1]
        weight = params[f"{layer}.weight"]
        last = layer == layers - 1
        rows = high if last else _room(high)
        if weight.shape[0] == rows and f"{layer}.bias" in params:
            bias = params[f"{layer}.bias"] if last else params[f"{layer}.bias"] + _one_at(high, rows, weight.device)
            nothing = _nothing(rows, _room(wide) - wide - 1, weight.device)
            weights.append(torch.cat([weight[:, :wide], bias[:, None], nothing], 1).to(dtype))
            continue
        whole = weight.new_zeros((rows, _room(wide)), dtype=dtype)
        whole[:high, :wide] = weight[:high, :wide]
        if f"{layer}.bias" in params:
            whole[:high, wide] = params[f"{layer}.bias"][:high]
        if not last:
            whole[high, wide].fill_(1.0)
        weights.append(whole)
    return weights


def _with_one(x: Tensor, dtype: torch.dtype, room: int) -> Tensor:
    """[..., room] inputs, scaled where they are bytes, then a one, then nothing."""
    whole = x.new_zeros((*x.shape[:-1], room), dtype=dtype)
    whole[..., : x.shape[-1]] = x.to(dtype) / 255 if x.dtype == torch.uint8 else x
    whole[..., x.shape[-1]].fill_(1.0)
    return whole


def _room(width: int) -> int:
    """For a layer's units and the one that is always 1, a multiple of 16."""
    return math.ceil((width + 1) / 16) * 16


class _Forward(torch.autograd.Function):
    """(inputs, weights of each layer) -> (hidden units of each layer, logits)."""

    @staticmethod
    def forward(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        (x, *stacked), before = _stacked([x, *weights], shared=0)
        outputs = []
        last = len(stacked) - 1
        for layer, weight in enumerate(stacked):
            if layer == last - 1 and stacked[last].shape[-2] == 1 and pays(x, weight):
                free = x.shape[0] < weight.shape[0]  # a product for all trials cuts what it puts out by the way
                x = _products(x, weight, relu=free)
                outputs += [x, outputs_of(x, stacked[last], cut=not free)]
                break
            x = _products(x, weight, relu=layer < last)
            outputs.append(x)
        return tuple(output.reshape(*before, *output.shape[2:]) for output in outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: `backward` is told."""

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *tensors: Tensor) -> Any:
        outputs = _Forward.apply(*_in_front(in_dims, tensors))
        return outputs, (0,) * len(outputs)


class _Backward(torch.autograd.Function):
    """(gradient of the logits, inputs, hidden units of each layer, weights of each layer) -> gradients of weights."""

    @staticmethod
    def forward(slope: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        layers = len(kept) // 2
        (slope, *stacked), before = _stacked([slope, *kept], shared=1)
        hidden, weights = stacked[:layers], stacked[layers:]
        scale: Tensor | None = None  # [T, n, units]: what the rows of `slope` are still to be multiplied with
        masked: Tensor | None = None
        if layers > 1 and slope.shape[-1] == 1 and pays(hidden[-2], weights[-2]):
            masked, of_last = slopes_of(slope, hidden[-1])
        else:
            of_last = _products_over_samples(slope, hidden[-1])
        gradients = [of_last]
        for layer in range(layers - 1, 0, -1):
            if masked is not None:
                slope, scale, masked = masked, weights[layer][..., 0, :], None
            else:
                slope, scale = _slope_below(slope, scale, weights[layer], hidden[layer])
            gradient = _products_over_samples(slope, hidden[layer - 1])
            gradients.append(gradient if scale is None else gradient * scale[..., None])
        return tuple(gradient.reshape(*before, *gradient.shape[2:]) for gradient in reversed(gradients))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """No gradient is taken of a gradient here."""

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *tensors: Tensor) -> Any:
        outputs = _Backward.apply(*_in_front(in_dims, tensors))
        return outputs, (0,) * len(outputs)


def _in_front(in_dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """What vmap has stacked, with that axis in front; of size 1 where all share a tensor."""
    return [
        tensor[None] if where is None else tensor.movedim(where, 0)
        for where, tensor in zip(in_dims, tensors, strict=True)
    ]


def _stacked(tensors: list[Tensor], shared: int) -> tuple[list[Tensor], torch.Size]:
    """Each with two axes in front, trials and clients, and the axes there were. shared: which of them may go on having
    one trial for all."""
    before = torch.broadcast_shapes(*(tensor.shape[:-2] for tensor in tensors))
    if len(before) > 2:
        each = [tensor.expand(*before, *tensor.shape[-2:]).reshape(1, -1, *tensor.shape[-2:]) for tensor in tensors]
        return each, before
    missing = (1,) * (2 - len(before))
    whole = missing + before
    each = [tensor.reshape(missing + tensor.shape) for tensor in tensors]
    trials = [tensor.shape[0] if number == shared else whole[0] for number, tensor in enumerate(each)]
    return [t.expand(count, whole[1], *t.shape[2:]) for t, count in zip(each, trials, strict=True)], before


def _products(x: Tensor, weight: Tensor, relu: bool) -> Tensor:
    """[T, n, M, out] units of a layer."""
    trials, clients, high, wide = weight.shape
    samples = x.shape[2]
    if x.shape[0] < trials:  # one product for all trials of a client
        units = x.new_empty(clients, samples, trials * high)
        nothing = x.new_zeros(trials * high)
        for i in range(clients):
            rows = weight[:, i].reshape(trials * high, wide).t()
            if relu:
                torch._addmm_activation(nothing, x[0, i], rows, out=units[i])
            else:
                torch.mm(x[0, i], rows, out=units[i])
        return units.view(clients, samples, trials, high).permute(2, 0, 1, 3)
    if x.is_contiguous():
        units = torch.bmm(x.flatten(0, 1), weight.flatten(0, 1).mT).view(trials, clients, samples, high)
        return units.relu_() if relu else units
    units = x.new_empty(clients, trials, samples, high)
    for i in range(clients):
        torch.bmm(x[:, i], weight[:, i].mT, out=units[i])
    return (units.relu_() if relu else units).transpose(0, 1)


def _slope_below(slope: Tensor, scale: Tensor | None, weight: Tensor, units: Tensor) -> tuple[Tensor, Tensor | None]:
    """The gradient of what goes into a layer's units, [T, n, M, units], from that of what comes out of the next.

    Below a single output the gradient is the output's, masked, times that unit's weight: the weight is left for later,
    as a scale, which saves a pass.
    """
    if scale is not None:
        weight = weight * scale[..., None]
    if slope.shape[-1] == 1 and scale is None:
        masked = torch.empty_strided(units.shape, units.stride(), dtype=units.dtype, device=units.device)
        whole = slope.expand(units.shape)
        torch.ops.aten.threshold_backward.grad_input(whole, units, 0, grad_input=masked)
        return masked, weight[..., 0, :]
    trials, clients = units.shape[:2]
    below = torch.empty_strided(units.shape, units.stride(), dtype=units.dtype, device=units.device)
    if below.is_contiguous() and slope.is_contiguous() and weight.shape[0] == trials:
        torch.bmm(slope.flatten(0, 1), weight.flatten(0, 1), out=below.flatten(0, 1))
    else:
        for i in range(clients):
            torch.bmm(slope[:, i], weight[:, i], out=below[:, i])
    torch.ops.aten.threshold_backward.grad_input(below, units, 0, grad_input=below)
    return below, None


def _products_over_samples(slope: Tensor, units: Tensor) -> Tensor:
    """[T, n, out, in] sum over samples of slope [T, n, M, out] times units [1 or T, n, M, in]."""
    trials, clients, samples, high = slope.shape
    wide = units.shape[-1]
    if units.shape[0] < trials:
        total = slope.new_empty(clients, trials * high, wide)
        for i in range(clients):
            rows = slope[:, i].transpose(0, 1).reshape(samples, trials * high)  # a view, as `_products` lays them out
            torch.mm(rows.t(), units[0, i], out=total[i])
        return total.view(clients, trials, high, wide).transpose(0, 1)
    if slope.is_contiguous() and units.is_contiguous():
        return torch.bmm(slope.flatten(0, 1).mT, units.flatten(0, 1)).view(trials, clients, high, wide)
    total = slope.new_empty(clients, trials, high, wide)
    for i in range(clients):
        torch.bmm(slope[:, i].mT, units[:, i], out=total[i])
    return total.transpose(0, 1)
