"""A lens: inputs brought to one scale, and without what was found to be a shortcut. Models are shown data through it.

[2 + k, d], for d columns of a table or channels of an image: what each is multiplied by (0: left out), what is then
added, and k unit vectors at right angles to each other, of which nothing is left. Rows of zeros take nothing away.
The first row of a lens for images goes on after the channels: one number for each cell of a grid (0: left out), and one
for the brightness (0: every image is brought to the same brightness and contrast). Lenses of older runs do not.
"""

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from perinvfl.core.image_grid import GRID
from perinvfl.core.tree import Params
from perinvfl.models.base import Model

LEAST_CONTRAST = 1e-3  # an image that shows nothing stays one
BESIDE_CHANNELS = GRID**2 + 1


def make_lens(scale: Tensor, shift: Tensor, directions: Tensor, most: int) -> Tensor:
    """From directions [k, d] of any length and angle, the strongest first; k is filled up to `most`, or cut off there.

    >>> make_lens(torch.ones(3), torch.zeros(3), torch.eye(3), most=2).shape
    torch.Size([4, 3])
    """
    d = len(scale)
    kept = directions[directions.norm(dim=1) > 0][:most]
    basis = torch.linalg.qr(kept.T).Q.T if len(kept) else kept.new_zeros(0, d)
    return torch.cat([torch.stack([scale, shift]), basis, scale.new_zeros(most - len(basis), d)])


def for_images(lens: Tensor, hidden: Collection[int], evened: bool) -> Tensor:
    """A lens of channels, with cells to leave out, and brightness if it is to be left out too."""
    further = lens.new_zeros(len(lens), BESIDE_CHANNELS)
    further[0] = 1
    further[0, list(hidden)] = 0
    further[0, -1] = 0 if evened else 1
    return torch.cat([lens, further], 1)


def fits(width: int, shape: tuple[int, ...]) -> bool:
    """Whether a lens of this width can be one for samples of this shape."""
    if len(shape) == 3:
        return width in (shape[0], shape[0] + BESIDE_CHANNELS)
    return width == math.prod(shape)


def evened(images: Tensor) -> Tensor:
    """[..., C, H, W] each with mean 0 and deviation 1."""
    centred = images - images.mean((-3, -2, -1), keepdim=True)
    return centred / centred.square().mean((-3, -2, -1), keepdim=True).sqrt().clamp(min=LEAST_CONTRAST)


def through(x: Tensor, lens: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Samples of this shape as they are seen, whatever axes come before; bytes become numbers from 0 to 1.

    >>> through(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0], [1.0, 0.0]]), (2,))
    tensor([[7., 0.]])
    """
    return _looking(lens, shape)(x)


def seeing_through(model: Model, lens: Tensor | None, shape: tuple[int, ...]) -> Model:
    """The model with a lens before it."""
    if lens is None:
        return model
    look = _looking(lens, shape)

    def features(params: Params, x: Tensor) -> Tensor:
        return model.features(params, look(x))

    def apply(params: Params, x: Tensor) -> Tensor:
        return model.apply(params, look(x))

    return model._replace(features=features, apply=apply, direct=None, batched=None)


def _looking(lens: Tensor, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """What the lens does, with all that it decides decided: exported models hold no decisions."""
    images = len(shape) == 3
    wide = images and lens.shape[1] > shape[0]
    shown = _shown(lens[0, shape[0] :].tolist(), shape[1], shape[2]) if wide else None
    even = wide and float(lens[0, -1]) == 0
    own = lens[:, : shape[0], None, None].clone() if images else lens  # exported files take no part of a tensor

    def look(x: Tensor) -> Tensor:
        values = x / 255 if x.dtype == torch.uint8 else x
        rows = values if images else values.flatten(-len(shape))
        glass = own.to(values)
        seen = rows * glass[0] + glass[1]
        for direction in glass[2:]:
            seen = seen - (seen * direction).sum(-3 if images else -1, keepdim=True) * direction
        if shown is not None:
            seen = seen * shown.to(seen)
        return (evened(seen) if even else seen).view(x.shape)

    return look


def _shown(cells: list[float], height: int, width: int) -> Tensor | None:
    """[H, W] 0 where a cell is left out, as far as it reaches; None where none is."""
    if all(cells[: GRID**2]):
        return None
    shown = torch.ones(height, width)
    for cell in range(GRID**2):
        if cells[cell] == 0:
            (top, bottom), (left, right) = (_reach(cell // GRID, height), _reach(cell % GRID, width))
            shown[top:bottom, left:right] = 0
    return shown


def _reach(place: int, size: int) -> tuple[int, int]:
    """From where to where a cell reaches, as `adaptive_avg_pool2d` divides a side."""
    return place * size // GRID, -(-(place + 1) * size // GRID)
