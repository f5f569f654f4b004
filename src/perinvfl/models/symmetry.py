"""Symmetry-blind models: a nuisance the user knows of can tell the model nothing, not even which client it is in."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from perinvfl.errors import UserError
from perinvfl.models.base import Model
from perinvfl.tree import Params

Symmetry = Literal["nothing", "rotations", "flips", "rotations and flips"]


def blinded(model: Model, symmetry: Symmetry, shape: tuple[int, ...]) -> Model:
    """The model with its features, and so its logits, averaged over a group of ways to see an image.

    The last layer is linear, so the mean of the logits is the last layer at the mean of the features.

    >>> from perinvfl.models.mlp import mlp
    >>> model = blinded(mlp((8, 3, 1), bias=True, precision="float32"), "rotations", (2, 2, 2))
    >>> params, image = model.init(torch.Generator().manual_seed(0)), torch.rand(1, 2, 2, 2)
    >>> turned = image.rot90(1, (-2, -1))
    >>> torch.allclose(model.apply(params, image), model.apply(params, turned))
    True
    """
    if symmetry == "nothing":
        return model
    if len(shape) != 3 or ("rotations" in symmetry and shape[1] != shape[2]):
        square = "square images" if "rotations" in symmetry else "images"
        raise UserError(
            f'model.blind_to = "{symmetry}" takes {square} (channels, height, width), and these are {shape}.'
        )
    views = _views(symmetry)

    def features(params: Params, x: Tensor) -> Tensor:
        seen = model.features(params, torch.cat([view(x) for view in views]))  # one large product instead of several
        return seen.unflatten(0, (len(views), -1)).mean(0)

    def apply(params: Params, x: Tensor) -> Tensor:
        return model.classify(params, features(params, x))

    if model.statistics is not None:
        raise UserError(f'model.blind_to = "{symmetry}" does not go with model.norm = "batch"; use "group".')
    return model._replace(features=features, apply=apply)


def _views(symmetry: Symmetry) -> list[Callable[[Tensor], Tensor]]:
    turns = range(4) if "rotations" in symmetry else range(1)
    mirrored = (False, True) if "flips" in symmetry else (False,)

    def view(turn: int, mirror: bool) -> Callable[[Tensor], Tensor]:
        return lambda x: (x.flip(-1) if mirror else x).rot90(turn, (-2, -1))

    return [view(turn, mirror) for turn in turns for mirror in mirrored]
