"""Starts the kernels of `kernels.py` for many models at once."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from perinvfl.models.fused.compiling import PROGRAMS, compiled, parts_of

FEWEST = 16  # channels that a product takes at least
POOLED = 1024  # numbers that a program of pooling computes
EPSILON = 1e-5


class Window(NamedTuple):
    """Of a convolution: its size, its steps, and how far it reaches beyond the image."""

    tall: int
    broad: int
    step_y: int
    step_x: int
    pad_y: int
    pad_x: int

    def sizes(self) -> dict[str, int]:
        return {name.upper(): size for name, size in self._asdict().items()}


@functools.cache
def kernels() -> ModuleType | None:
    """The kernels, where they can be compiled."""
    return compiled("kernels", _try_out)


def _try_out(module: ModuleType) -> None:
    """A norm, and products in their largest size: what does not compile here fails in one of them."""
    h = torch.ones(1, 1, 192, 192, 128, device="cuda", dtype=torch.bfloat16)
    ones = torch.ones(1, 128, device="cuda")
    _launch_norm(module, h, ones, ones, h, 32, True, True)
    matrix = _launch_lay_out(module, torch.ones(1, 128, 128, 3, 3, device="cuda"), h.dtype)
    window = Window(3, 3, 1, 1, 1, 1)
    _launch_convolution(module, h, matrix, torch.empty_like(h), window, back=False)
    _launch_weigh(module, h, h, window)


Run = Callable[..., tuple[Tensor, ...]]


def alone(run: Run, *given: Any) -> tuple[Tensor, ...]:
    """A run over the tensors of one model."""
    return tuple(part[0] for part in run(*(one[None] if isinstance(one, Tensor) else one for one in given)))


def over_models(run: Run) -> Run:
    """`run` takes tensors whose first axis is that of models, and vmap makes that axis longer."""

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(*given: Any) -> tuple[Tensor, ...]:
            return run(*(one.contiguous() if isinstance(one, Tensor) else one for one in given))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
            def joined(one: Any, dim: int | None) -> Any:
                if not isinstance(one, Tensor):
                    return one
                one = one.expand(info.batch_size, *one.shape) if dim is None else one.movedim(dim, 0)
                return one.flatten(0, 1)

            found: tuple[Tensor, ...] = Kernel.apply(*map(joined, given, in_dims))
            return tuple(part.unflatten(0, (info.batch_size, -1)) for part in found), (0,) * len(found)

    return Kernel.apply


@over_models
def normalise(*given: Any) -> tuple[Tensor, ...]:
    return _launch_norm(_module(), *given)


def _launch_norm(
    module: ModuleType, h: Tensor, weight: Tensor, bias: Tensor, around: Tensor, groups: int, relu: bool, adds: bool
) -> tuple[Tensor, ...]:
    out = torch.empty_like(h)
    mean, scale = h.new_empty(2, *h.shape[:2], h.shape[-1], dtype=torch.float32)
    grid, sizes = _norm_sizes(h, groups, relu, adds)
    module.normalise[grid](
        *(h, around, weight, bias, out, mean, scale),
        *(h.shape[1], h.shape[-1], EPSILON, h.shape[2] * h.shape[3]),
        **sizes,
    )
    return out, mean, scale


@over_models
def normalise_back(
    slope: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    mean: Tensor,
    scale: Tensor,
    groups: int,
    relu: bool,
    adds: bool,
) -> tuple[Tensor, ...]:
    of_h = torch.empty_like(h)
    of_around = torch.empty_like(h) if adds else of_h[:, :1]
    of_weight, of_bias = torch.empty_like(mean), torch.empty_like(mean)
    grid, sizes = _norm_sizes(h, groups, relu, adds)
    _module().normalise_back[grid](
        *(slope, h, out, weight, bias, mean, scale, of_h, of_around, of_weight, of_bias),
        *(h.shape[1], h.shape[-1], h.shape[2] * h.shape[3]),
        **sizes,
    )
    return of_h, of_weight.sum(1), of_bias.sum(1), of_around


def _norm_sizes(h: Tensor, groups: int, relu: bool, adds: bool) -> tuple[tuple[int, int], dict[str, Any]]:
    """A program for each image, or for some groups of it where there are few images."""
    images, channels, pixels = h.shape[0] * h.shape[1], h.shape[-1], h.shape[2] * h.shape[3]
    shares = 1
    while images * shares < 4 * PROGRAMS and channels // shares > 32 and groups // shares > 1:
        shares *= 2
    lines = max(1, min(4096 * shares // channels, 1 << (pixels - 1).bit_length()))  # looked at together
    warps = 8 if lines * channels // shares >= 2048 else 4
    flags = {"GROUPS": groups // shares, "EACH": channels // groups, "RELU": relu, "ADD": adds}
    return (images, shares), {**flags, "PIXELS": lines, "num_warps": warps}


@over_models
def convolve(h: Tensor, matrix: Tensor, window: Window) -> tuple[Tensor, ...]:
    height = (h.shape[2] + 2 * window.pad_y - window.tall) // window.step_y + 1
    width = (h.shape[3] + 2 * window.pad_x - window.broad) // window.step_x + 1
    out = h.new_empty(*h.shape[:2], height, width, matrix.shape[-1])
    _launch_convolution(_module(), h, matrix, out, window, back=False)
    return (out,)


@over_models
def convolve_back(slope: Tensor, matrix: Tensor, window: Window, height: int, width: int) -> tuple[Tensor, ...]:
    out = slope.new_empty(*slope.shape[:2], height, width, matrix.shape[-2])
    _launch_convolution(_module(), slope, matrix, out, window, back=True)
    return (out,)


def _launch_convolution(module: ModuleType, h: Tensor, matrix: Tensor, out: Tensor, window: Window, back: bool) -> None:
    models, rows, outs = h.shape[0], out[0, ..., 0].numel(), out.shape[-1]
    high, wide = 128, _block(outs)

    def programs() -> int:
        return models * parts_of(rows, high) * parts_of(outs, wide)

    if h.element_size() == 2 and outs >= 2 * wide:
        wide *= 2
        if programs() < PROGRAMS:
            wide //= 2
    while high > 32 and programs() < PROGRAMS:
        high //= 2
    module.convolve[(parts_of(rows, high), parts_of(outs, wide), models)](
        *(h, matrix, out, *h.shape[1:], *out.shape[2:]),
        *((1, matrix.shape[-1]) if back else (outs, 1)),
        **window.sizes(),
        BACK=back,
        PRECISION="tf32",
        ROWS=high,
        FROM=_block(h.shape[-1], h.element_size()),
        TO=wide,
        num_warps=4,
        num_stages=3,
    )


@over_models
def lay_out(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (_launch_lay_out(_module(), weight, dtype),)


def _launch_lay_out(module: ModuleType, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """[O, C, tall, broad] -> [tall * broad, C, O], as products read it."""
    models, outs, ins, tall, broad = weight.shape
    matrix = weight.new_empty(models, tall * broad, ins, outs, dtype=dtype)
    grid = parts_of(outs, 64), parts_of(ins * tall * broad, 64), models
    module.lay_out[grid](weight, matrix, outs, ins, TAPS=tall * broad, TO=64, TAKEN=64)
    return matrix


@over_models
def weigh(h: Tensor, slope: Tensor, window: Window) -> tuple[Tensor, ...]:
    return (_launch_weigh(_module(), h, slope, window),)


def _launch_weigh(module: ModuleType, h: Tensor, slope: Tensor, window: Window) -> Tensor:
    """[O, C, tall, broad] the gradient of the weights, from as many parts of the rows as keep a GPU busy."""
    models, ins, outs, taps = h.shape[0], h.shape[-1], slope.shape[-1], window.tall * window.broad
    rows, long, high, wide = slope[0, ..., 0].numel(), 128 // h.element_size(), _block(ins), _block(outs)
    if h.element_size() == 2 and min(ins, outs) >= 128:
        high, wide = 2 * high, 2 * wide
    blocks = parts_of(ins, high) * parts_of(outs, wide)
    parts = min(parts_of(2 * PROGRAMS, models * taps * blocks), parts_of(rows, 4 * long))
    share = parts_of(parts_of(rows, parts), long) * long
    parts = parts_of(rows, share)
    found = h.new_empty(models, parts, taps, ins, outs, dtype=torch.float32)
    module.weigh[(blocks, parts * taps, models)](
        *(h, slope, found, *h.shape[1:], *slope.shape[2:], parts, share),
        **window.sizes(),
        PRECISION="tf32",
        ROWS=long,
        FROM=high,
        TO=wide,
        num_warps=4,
        num_stages=3,
    )
    of_weight = found.new_empty(models, outs, ins, window.tall, window.broad)
    grid = parts_of(outs, 64), parts_of(ins * taps, 64), models
    module.gather[grid](found, of_weight, outs, ins, parts, TAPS=taps, TO=64, TAKEN=64)
    return of_weight


@over_models
def pool(h: Tensor) -> tuple[Tensor, ...]:
    height, width = ((side + 1) // 2 for side in h.shape[2:4])
    out = h.new_empty(*h.shape[:2], height, width, h.shape[-1])
    chosen = torch.empty_like(out, dtype=torch.uint8)
    blocks = parts_of(out[0, 0].numel(), POOLED)
    grid = (h.shape[0] * h.shape[1] * blocks,)
    _module().pool[grid](h, out, chosen, *h.shape[2:], height, width, blocks, BLOCK=POOLED)
    return out, chosen


@over_models
def pool_back(slope: Tensor, chosen: Tensor, height: int, width: int) -> tuple[Tensor, ...]:
    of_h = slope.new_empty(*slope.shape[:2], height, width, slope.shape[-1])
    blocks = parts_of(of_h[0, 0].numel(), POOLED)
    grid = (slope.shape[0] * slope.shape[1] * blocks,)
    _module().pool_back[grid](slope, chosen, of_h, *of_h.shape[2:], *slope.shape[2:4], blocks, BLOCK=POOLED)
    return (of_h,)


def _module() -> ModuleType:
    module = kernels()
    assert module is not None  # nobody asked for a kernel where there is none
    return module


def _block(channels: int, size: int = 2) -> int:
    """Those that a product takes at once; of larger numbers half as many, since memory beside them is short."""
    return min(128 // size, max(FEWEST, 1 << (channels - 1).bit_length()))
