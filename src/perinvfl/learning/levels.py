"""Levels of a category, as one column that reads it best: sums of `learning.slopes` in, sums out."""

import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.learning.slopes import class_slopes


def merge_levels(found: Params) -> tuple[Params, list[list[int]]]:
    """Levels of a category (columns that add up to a constant) as one column for each target: what reads it best.

    Also which of the given columns each column now stands for.
    """
    noise = found["noise"] / found["rows"].clamp(min=1)
    d = noise.shape[-1]
    if noise.ndim == 1:
        return found, [[j] for j in range(d)]
    levels = _levels(noise)
    slopes = class_slopes(found)  # [C, d]
    rows, members = [], []
    for j in range(d):
        if not any(j in group for group in levels):
            rows.append(torch.eye(d, dtype=torch.float64)[j])
            members.append([j])
    for group in levels:
        places = torch.tensor(group)
        inverse = torch.linalg.pinv(noise[places][:, places], hermitian=True, rtol=1e-6)
        for slope in slopes:
            reads = torch.zeros(d, dtype=torch.float64)
            reads[places] = inverse @ slope[places]
            rows.append(reads / reads.norm().clamp(min=1e-12))
            members.append(group)
    turn = torch.stack(rows)  # [columns now, d]
    squares = {name: turn @ found[name] @ turn.T for name in ("noise", "within", "square")}
    return found | squares | {name: found[name] @ turn.T for name in ("slope", "context_slope")}, members


def _levels(noise: Tensor) -> list[list[int]]:
    """Sets of columns of which some mixture does not vary at all."""
    size = noise.diagonal().clamp(min=0).sqrt()
    known = size > 1e-6
    scale = torch.where(known, 1 / size.clamp(min=1e-6), 0.0)
    values, vectors = torch.linalg.eigh(scale[:, None] * noise * scale)
    still = vectors[:, values < 1e-5] * known[:, None]
    together = (still @ still.T).abs() > 1e-2
    groups: list[list[int]] = []
    for j in range(len(noise)):
        group = together[j].nonzero().flatten().tolist()
        if known[j] and len(group) > 1 and not any(j in other for other in groups):
            groups.append(group)
    return groups
