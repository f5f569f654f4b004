"""A lens: inputs brought to one scale, and without what was found to be a shortcut. Models are shown data through it.

[2 + k, d], for d columns of a table or channels of an image: what each is multiplied by (0: left out), what is then
added, and k unit vectors at right angles to each other, of which nothing is left. Rows of zeros take nothing away.
"""

import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.models.base import Model


def make_lens(scale: Tensor, shift: Tensor, directions: Tensor, most: int) -> Tensor:
    """From directions [k, d] of any length and angle; k is filled up to `most`."""
    d = len(scale)
    kept = directions[directions.norm(dim=1) > 0]
    basis = torch.linalg.qr(kept.T).Q.T if len(kept) else kept.new_zeros(0, d)
    return torch.cat([torch.stack([scale, shift]), basis, scale.new_zeros(most - len(basis), d)])


def through(x: Tensor, lens: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Samples of this shape as they are seen, whatever axes come before; bytes become numbers from 0 to 1.

    >>> through(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0], [1.0, 0.0]]), (2,))
    tensor([[7., 0.]])
    """
    values = x / 255 if x.dtype == torch.uint8 else x
    images = len(shape) == 3
    rows = values if images else values.flatten(-len(shape))
    lens = lens.to(values)[..., None, None] if images else lens.to(values)
    seen = rows * lens[0] + lens[1]
    for direction in lens[2:]:
        seen = seen - (seen * direction).sum(-3 if images else -1, keepdim=True) * direction
    return seen.view(x.shape)


def seeing_through(model: Model, lens: Tensor | None, shape: tuple[int, ...]) -> Model:
    """The model with a lens before it."""
    if lens is None:
        return model

    def features(params: Params, x: Tensor) -> Tensor:
        return model.features(params, through(x, lens, shape))

    def apply(params: Params, x: Tensor) -> Tensor:
        return model.apply(params, through(x, lens, shape))

    return model._replace(features=features, apply=apply, direct=None, batched=None)
