"""Convolution, group norm and pooling of images [B, H, W, C]: by PyTorch, by products, or by kernels of our own."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from perinvfl.models import fused
from perinvfl.models.fused import EPSILON

Convolution = Literal["library", "products"]
Kernels = Literal["auto", "none"]

GROUPS = 32  # most groups of a group norm (Wu & He, 2018)


@dataclass(frozen=True)
class ImageOperations:
    """How a network computes them."""

    convolution: Convolution  # where there are no kernels
    kernels: Kernels
    dtype: torch.dtype

    def convolve(self, h: Tensor, weight: Tensor, stride: int) -> Tensor:
        """[B, H, W, C] -> [B, H', W', O], padded so that stride 1 keeps the size."""
        if self.kernels == "auto" and fused.convolves(h, weight, stride):
            return _convolve_fused(h, weight, stride)
        weight = weight.to(self.dtype)
        if self.convolution == "products":
            return convolve_by_products(h, weight, stride)
        across = F.conv2d(h.permute(0, 3, 1, 2), weight, stride=stride, padding=weight.shape[-1] // 2)
        return across.permute(0, 2, 3, 1)

    def group_norm(self, h: Tensor, weight: Tensor, bias: Tensor, relu: bool, around: Tensor | None) -> Tensor:
        """Normalised; `around` is added, then negative numbers become 0."""
        groups = math.gcd(GROUPS, max(1, h.shape[-1] // 2))  # at least two channels in each
        if self.kernels == "auto" and fused.normalises(h):
            return fused.group_norm(h, weight, bias, groups, relu, around)
        lines = h.flatten(1, 2).transpose(1, 2).contiguous()  # [B, C, H * W]
        normal = F.group_norm(lines, groups, eps=EPSILON).transpose(1, 2).unflatten(1, h.shape[1:3])
        normal = torch.addcmul(bias.to(h.dtype), normal, weight.to(h.dtype)).contiguous()  # channels last again
        return add_and_cut(normal, relu, around)

    def pool(self, h: Tensor) -> Tensor:
        """The largest of each 3 x 3, stepping by 2."""
        if self.kernels == "auto" and fused.pools(h):
            return fused.pool(h)
        return F.max_pool2d(h.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1)


def add_and_cut(h: Tensor, relu: bool, around: Tensor | None) -> Tensor:
    h = h if around is None else h + around
    return torch.relu(h) if relu else h


def convolve_by_products(h: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The same as one matrix product over all patches.

    Under vmap a convolution becomes one with as many groups as there are models, which libraries do slowly; a product
    becomes a batched product, which they do well. The result does not depend on the order of other work.
    """
    if stride == 1 and weight.shape[-1] > 1:
        made: Tensor = _SameSize.apply(h, weight)
        return made
    return _product(_patches(h, weight.shape[-1], stride), _as_matrix(weight))


class _SameSize(torch.autograd.Function):
    """A convolution by products that keeps the size, with a gradient that is one too.

    The gradient of taking patches apart would be as many sums over the image as a patch has places.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, weight: Tensor) -> Tensor:
        return _product(_patches(h, weight.shape[-1], 1), _as_matrix(weight))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        h, weight = ctx.saved_tensors  # patches are made again: kept, they would end second derivatives
        ins, kernel = weight.shape[1:3]
        of_weight = gradient.flatten(0, 2).T @ _patches(h, kernel, 1).flatten(0, 2)
        turned = weight.flip(2, 3).transpose(0, 1)
        of_h = _product(_patches(gradient, kernel, 1), _as_matrix(turned))
        return of_h, of_weight.unflatten(1, (kernel, kernel, ins)).permute(0, 3, 1, 2)


def _convolve_fused(h: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The same by one kernel. Of three colours it would have little to take at once: pieces of lines are laid out."""
    kernel = weight.shape[-1]
    reach = kernel // 2
    if h.shape[-1] >= fused.FEWEST:
        return fused.convolve(h, weight, (stride, stride), (reach, reach))
    depth = max(4, 1 << (h.shape[-1] - 1).bit_length()) - h.shape[-1]
    right = -kernel % 4  # so that pieces are as long as memory is best read
    padded = F.pad(h, (0, depth, reach, reach + right, reach, reach))
    pieces = padded.unfold(2, kernel + right, stride).transpose(3, 4).flatten(3)  # [B, H + 2 * reach, W', ...]
    lines = F.pad(weight, (0, right, 0, 0, 0, depth)).permute(0, 3, 1, 2).flatten(1, 2)  # [O, ..., kernel]
    return fused.convolve(pieces, lines[..., None], (stride, 1), (0, 0))


def _patches(h: Tensor, kernel: int, stride: int) -> Tensor:
    """[B, H, W, C] -> [B, H', W', kernel * kernel * C], padded so that stride 1 keeps the size.

    First along lines, then along columns: fewer and longer pieces are copied.
    """
    reach = kernel // 2
    height, width = ((side - 1) // stride + 1 for side in h.shape[1:3])
    if not reach:
        return h[:, ::stride, ::stride]
    padded = F.pad(h, (0, 0, reach, reach, reach, reach))
    along = torch.cat([padded[:, :, j : j + stride * (width - 1) + 1 : stride] for j in range(kernel)], -1)
    return torch.cat([along[:, i : i + stride * (height - 1) + 1 : stride] for i in range(kernel)], -1)


def _as_matrix(weight: Tensor) -> Tensor:
    """[O, C, k, k] -> [O, k * k * C], as patches are laid out."""
    return weight.permute(0, 2, 3, 1).flatten(1)


def _product(patches: Tensor, matrix: Tensor) -> Tensor:
    return (patches.flatten(0, 2) @ matrix.T).unflatten(0, patches.shape[:3])
