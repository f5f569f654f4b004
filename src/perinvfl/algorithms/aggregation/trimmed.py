"""The trimmed mean and the median, coordinate by coordinate: Yin et al., Byzantine-Robust Distributed Learning: Towards
Optimal Statistical Rates, 2018; `trimming` of any method.

In each coordinate the clients' numbers are sorted, and a share κ of the clients is left out at either end. With shares
w_i that are not alike, the sorted numbers lie side by side on [0, 1], each as long as its share, and count as far as
they reach into [κ, 1 − κ]. At κ = 1/2 that is the median: the number at 1/2, or the mean of the two that meet there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.algorithms.aggregation.base import Aggregation
from perinvfl.core import tree
from perinvfl.core.tree import Params

MEETING = 1e-6  # two numbers meet at 1/2 if they come this close to it


@dataclass(frozen=True)
class Trimmed(Aggregation):
    """In the trials of a sweep that set κ to 0, what another aggregation gives."""

    of: Aggregation
    share: float | Tensor  # κ

    def combine(self, updates: Params, shares: Tensor) -> Params:
        def trimmed(leaf: Tensor) -> Tensor:  # [n, ...] -> [...]
            numbers, order = leaf.sort(dim=0, stable=True)
            return (trimmed_shares(shares[order], self.share).to(leaf.dtype) * numbers).sum(0)

        found = tree.map(trimmed, updates)
        if not isinstance(self.share, Tensor):
            return found
        on = self.share > 0
        return tree.map(lambda own, other: torch.where(on, own, other), found, self.of.combine(updates, shares))


def trimmed_shares(shares: Tensor, share: float | Tensor) -> Tensor:
    """[n, ...] what each number counts, from the shares in the mean in the order of the numbers."""
    ends = shares.cumsum(0)
    starts = ends - shares
    reach = (ends.clamp(max=1 - share) - starts.clamp(min=share)).clamp(min=0)
    middle = ((starts <= 0.5 + MEETING) & (ends >= 0.5 - MEETING)).to(shares.dtype)
    counts = torch.where(torch.as_tensor(share, device=shares.device) < 0.5 - MEETING, reach, middle)
    return counts / counts.sum(0)
