"""The data of several trials as one, [T, N, M, ...]."""

from collections.abc import Callable

import torch
from torch import Tensor

from perinvfl.core.mapped import is_mapped
from perinvfl.data.federation import Split
from perinvfl.engine.problems import place_inputs
from perinvfl.learning.training import Training
from perinvfl.models import Model


def stack_splits(
    splits: list[Split],
    trials: int,
    device: torch.device,
    training: Training,
    shared: dict[tuple[int, ...], Tensor] | None = None,  # inputs stacked before
) -> Split:
    """One split for all trials is shown to each without a copy; splits that share their inputs go on doing so."""
    longest = max(s.y.shape[1] for s in splits)

    def stacked(parts: list[Tensor], place: Callable[[Tensor], Tensor], padding: int = 0) -> Tensor:
        if len(parts) == 1:
            return place(parts[0]).expand(trials, *parts[0].shape)
        different = {id(part): part for part in parts}  # many trials, few data
        placed = {key: _lengthen(place(part), longest, padding) for key, part in different.items()}
        return torch.stack([placed[id(part)] for part in parts])

    def place_labels(part: Tensor) -> Tensor:
        return part.to(device)

    inputs = [s.x for s in splits]
    key, shared = tuple(map(id, inputs)), {} if shared is None else shared
    if key not in shared:
        shared[key] = stacked(inputs, lambda x: place_inputs(x, device, training))
    y = stacked([s.y for s in splits], place_labels)
    return Split(shared[key], y, stacked([s.context for s in splits], place_labels, padding=-1))


def laid_out(x: Tensor, model: Model, training: Training) -> Tensor:
    """Inputs [T, N, M, ...], shared by trials or each its own, ready for products where every step takes them all."""
    if model.batched is None or training.batch_size > 0 or not x.is_floating_point() or is_mapped(x):
        return x  # bytes stay bytes, which take less room
    if x.stride(0) > 0:
        return model.batched.enter(x)
    one = model.batched.enter(x[:1])
    return one.expand(len(x), *one.shape[1:])


def _lengthen(part: Tensor, samples: int, padding: int) -> Tensor:
    """[N, M, ...] with M made up to so many samples."""
    more = part.new_full((part.shape[0], samples - part.shape[1], *part.shape[2:]), padding)
    return torch.cat([part, more], 1)
