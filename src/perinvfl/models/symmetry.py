"""Symmetries of images: models that are blind to them, and images seen in one of the ways that they allow."""

from typing import Literal

import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.errors import UserError
from perinvfl.models.base import Model

Symmetry = Literal["nothing", "rotations", "flips", "rotations and flips"]


def blinded(model: Model, symmetry: Symmetry, shape: tuple[int, ...]) -> Model:
    """The model with its features, and so its logits, averaged over a group of ways to see an image.

    A nuisance that the user knows of can then tell the model nothing, not even which client it is in.

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
    check_images("model.blind_to", symmetry, shape)
    views = views_of(symmetry)

    def features(params: Params, x: Tensor) -> Tensor:
        every_way = torch.cat([seen(x, view) for view in views])  # one large product instead of several
        return model.features(params, every_way).unflatten(0, (len(views), -1)).mean(0)

    def apply(params: Params, x: Tensor) -> Tensor:
        return model.classify(params, features(params, x))

    if model.statistics is not None:
        raise UserError(f'model.blind_to = "{symmetry}" does not go with model.norm = "batch"; use "group".')
    return model._replace(features=features, apply=apply, direct=None, batched=None)


def seeing(model: Model, view: int) -> Model:
    """The model on images in this view."""
    if view == 0:
        return model
    return model._replace(
        features=lambda params, x: model.features(params, seen(x, view)),
        apply=lambda params, x: model.apply(params, seen(x, view)),
        direct=None,
        batched=None,
    )


def views_of(symmetry: Symmetry) -> list[int]:
    """Numbers of the ways to see an image that belong to a symmetry; 0 is as it is.

    >>> views_of("rotations"), views_of("flips")
    ([0, 2, 4, 6], [0, 1])
    """
    turns = range(4) if "rotations" in symmetry else range(1)
    mirrored = range(2) if "flips" in symmetry else range(1)
    return [2 * turn + mirror for turn in turns for mirror in mirrored]


def seen(x: Tensor, view: int) -> Tensor:
    """[..., H, W] images mirrored where the number is odd, then turned by half of it right angles."""
    return (x.flip(-1) if view % 2 else x).rot90(view // 2, (-2, -1))


def check_images(where: str, symmetry: Symmetry, shape: tuple[int, ...]) -> None:
    if len(shape) != 3 or ("rotations" in symmetry and shape[1] != shape[2]):
        square = "square images" if "rotations" in symmetry else "images"
        raise UserError(f'{where} = "{symmetry}" takes {square} (channels, height, width), and these are {shape}.')
