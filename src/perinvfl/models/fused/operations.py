"""Convolutions, group norms and pooling, differentiated: for one model, and under vmap for many."""

from typing import Any

import torch
from torch import Tensor

from perinvfl.models.fused import launch
from perinvfl.models.fused.launch import FEWEST, Window, alone

MOST = 1024  # channels that a norm takes; they are a power of two
LARGEST = 2**31  # places in the images of a model that a kernel can count
Pair = tuple[int, int]


def normalises(h: Tensor) -> bool:
    """Whether there is a kernel that normalises images [B, H, W, C]."""
    channels = h.shape[-1]
    return FEWEST <= channels <= MOST and channels & (channels - 1) == 0 and fits(h)


def convolves(h: Tensor, weight: Tensor, stride: int) -> bool:
    """Whether there is one for convolutions of such images; for products in full float32 there are no matrix units.

    Of fewer channels than a product takes only the three colours of an image, whose gradient nobody asks for.
    """
    if not fits(h):
        return False
    images, height, width, ins = h.shape
    outs, kernel = weight.shape[0], weight.shape[-1]
    longest = max(ins, outs, 4 * (kernel + 3))  # of what is laid out for a place, or comes out there
    places = images * (height + kernel) * (width // stride + 1) * longest
    exact = h.dtype != torch.bfloat16 and not torch.backends.cuda.matmul.allow_tf32
    return (ins >= FEWEST or ins <= 3) and places < LARGEST and not exact


def pools(h: Tensor) -> bool:
    """Whether there is one that pools them."""
    return fits(h)


def fits(h: Tensor) -> bool:
    """Whether kernels take such images: there are kernels, and the places of a batch can be counted."""
    if not h.is_cuda or torch.compiler.is_compiling() or h.numel() >= LARGEST:
        return False
    return launch.kernels() is not None


def group_norm(
    h: Tensor, weight: Tensor, bias: Tensor, groups: int, relu: bool = False, around: Tensor | None = None
) -> Tensor:
    """[B, H, W, C], normalised; `around` is added, then negative numbers become 0."""
    out: Tensor = _Norm.apply(h, weight, bias, around, groups, relu)[0]
    return out


def convolve(h: Tensor, weight: Tensor, step: Pair, pad: Pair) -> Tensor:
    """[B, H, W, C] -> [B, H', W', O] by weights [O, C, tall, broad]; down and across, a step and what is padded."""
    out: Tensor = _Convolution.apply(h, weight, step, pad)[0]
    return out


def pool(h: Tensor) -> Tensor:
    """[B, H, W, C] -> [B, H', W', C], the largest of each 3 x 3, stepping by 2, padded by 1."""
    out: Tensor = _Pool.apply(h)[0]
    return out


class _Norm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        h: Tensor, weight: Tensor, bias: Tensor, around: Tensor | None, groups: int, relu: bool
    ) -> tuple[Tensor, ...]:
        adds = around is not None
        return alone(launch.normalise, h, weight, bias, h if around is None else around, groups, relu, adds)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        h, weight, bias, around, groups, relu = inputs
        ctx.settings = groups, relu, around is not None
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        out, *moments = output
        ctx.save_for_backward(h, weight, bias, out if relu and around is not None else moments[0], *moments)

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        of_h, of_weight, of_bias, of_around = alone(launch.normalise_back, slope, *ctx.saved_tensors, *ctx.settings)
        return of_h, of_weight, of_bias, of_around if ctx.settings[-1] else None, None, None


class _Convolution(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, weight: Tensor, step: Pair, pad: Pair) -> tuple[Tensor, Tensor]:
        matrix = alone(launch.lay_out, weight, h.dtype)[0]
        window = Window(weight.shape[-2], weight.shape[-1], *step, *pad)
        return alone(launch.convolve, h, matrix, window)[0], matrix

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        h, weight, step, pad = inputs
        ctx.window = Window(weight.shape[-2], weight.shape[-1], *step, *pad)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(h, output[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        h, matrix = ctx.saved_tensors
        of_h = (
            alone(launch.convolve_back, slope, matrix, ctx.window, *h.shape[1:3])[0]
            if ctx.needs_input_grad[0]
            else None
        )
        return of_h, alone(launch.weigh, h, slope, ctx.window)[0], None, None


class _Pool(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor) -> tuple[Tensor, ...]:
        return alone(launch.pool, h)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.height, ctx.width = inputs[0].shape[1:3]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> Tensor:
        return alone(launch.pool_back, slope, *ctx.saved_tensors, ctx.height, ctx.width)[0]
