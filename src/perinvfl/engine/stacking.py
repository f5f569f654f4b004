"""The data of several trials as one, [T, N, M, ...]."""

import torch
from torch import Tensor

from perinvfl.data.federation import Split
from perinvfl.engine.problems import place_split
from perinvfl.learning.training import Training


def stack_splits(
    splits: list[Split],
    trials: int,
    device: torch.device,
    training: Training,
    shared: dict[tuple[int, ...], Tensor] | None = None,  # inputs stacked before
) -> Split:
    """One split for all trials is shown to each without a copy; splits that share their inputs go on doing so."""
    longest = max(s.y.shape[1] for s in splits)

    def stacked(parts: list[Tensor], padding: int = 0) -> Tensor:
        if len(parts) == 1:
            return parts[0].expand(trials, *parts[0].shape)
        return torch.stack([_lengthen(part, longest, padding) for part in parts])

    key, shared = tuple(id(s.x) for s in splits), {} if shared is None else shared
    if key not in shared:
        shared[key] = stacked([place_split(s, device, training).x for s in splits])
    return Split(
        shared[key], stacked([s.y.to(device) for s in splits]), stacked([s.context.to(device) for s in splits], -1)
    )


def _lengthen(part: Tensor, samples: int, padding: int) -> Tensor:
    """[N, M, ...] with M made up to so many samples."""
    more = part.new_full((part.shape[0], samples - part.shape[1], *part.shape[2:]), padding)
    return torch.cat([part, more], 1)
