"""What a perceptron with one output does beside its large products, in one pass over memory each way.

Used where there are many units, so that a small run need not wait for a compiler.

Shapes: T trials, n clients, M samples.
"""

import functools
from types import ModuleType

import torch
from torch import Tensor

from perinvfl.models.fused.compiling import PROGRAMS, compiled, parts_of

WORTH = 2**24  # units: some tenths of a millisecond
MOST = 1024  # units of a layer
TILE = 8192  # units that a program looks at together
WARP, VECTOR = 32, 16  # threads that need not wait for each other, and the bytes that one loads at once


@functools.cache
def kernels() -> ModuleType | None:
    """The kernels, where they can be compiled."""
    return compiled("unit_kernels", _try_out)


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether kernels take a layer of units x [., ., M, .] times weight [T, n, high, .]."""
    large = weight.shape[0] * weight.shape[1] * x.shape[-2] * weight.shape[-2] >= WORTH
    if not weight.is_cuda or not large or weight.shape[-2] > MOST or torch.compiler.is_compiling():
        return False
    return kernels() is not None


def outputs_of(units: Tensor, weight: Tensor, cut: bool) -> Tensor:
    """[T, n, M, 1] float32 outputs of units [T, n, M, high]; cut: negative units become 0 before, in place."""
    return _outputs(_module(), units, weight, cut)


def slopes_of(slope: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    """Of an output's slope [T, n, M, 1]: that of each unit, less the unit's weight, and that of the weights."""
    return _slopes(_module(), slope, units)


def _outputs(module: ModuleType, units: Tensor, weight: Tensor, cut: bool) -> Tensor:
    trials, clients, samples, high = units.shape
    tile = _tile(high)
    tile |= {"ROWS": 2 * tile["ROWS"], "PIECE": min(tile["UNITS"], WARP * VECTOR // units.element_size())}
    out = torch.empty(trials, clients, samples, 1, device=units.device)
    blocks = parts_of(samples, tile["ROWS"])
    sizes = clients, samples, high, *units.stride()[:3], blocks
    module.weigh_units[(trials * clients * blocks,)](
        units, weight.float().contiguous(), out, *sizes, CUT=cut, **tile, num_warps=8
    )
    return out


def _slopes(module: ModuleType, slope: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    trials, clients, samples, high = units.shape
    tile = _tile(high)
    parts = min(parts_of(8 * PROGRAMS, trials * clients), parts_of(samples, tile["ROWS"]))
    share = parts_of(samples, parts * tile["ROWS"]) * tile["ROWS"]
    parts = parts_of(samples, share)
    masked = torch.empty_strided(units.shape, units.stride(), dtype=units.dtype, device=units.device)
    found = torch.empty(trials, clients, parts, high, device=units.device)
    sizes = clients, samples, high, *units.stride()[:3], share, parts
    grid = trials * clients, parts
    module.mask_slopes[grid](slope.contiguous(), units, masked, found, *sizes, **tile, num_warps=8)
    return masked, found.sum(2, keepdim=True)


def _tile(high: int) -> dict[str, int]:
    units = 1 << (high - 1).bit_length()
    return {"ROWS": max(1, TILE // units), "UNITS": units}


def _try_out(module: ModuleType) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        units = torch.ones(1, 1, 64, 400, device="cuda", dtype=dtype)
        _outputs(module, units, units[:, :, :1], cut=True)
        _slopes(module, units[..., :1], units)


def _module() -> ModuleType:
    module = kernels()
    assert module is not None  # nobody asked for a kernel where there is none
    return module
