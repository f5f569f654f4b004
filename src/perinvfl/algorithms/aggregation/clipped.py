"""Updates no longer than the others': clipping by norm, as in Sun et al., Can You Really Backdoor Federated Learning?,
2019, to a bound that follows the median of the norms; `clipping` of any method.

Δ_i ← Δ_i min(1, c m / ‖Δ_i‖), where m is the median of the norms: one client cannot raise it by much.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.algorithms.aggregation.base import Aggregation
from perinvfl.core import tree
from perinvfl.core.tree import Params


@dataclass(frozen=True)
class Clipped(Aggregation):
    """Another aggregation of updates that are at most `most` times as long as the median of them."""

    of: Aggregation
    most: float | Tensor  # c

    def combine(self, updates: Params, shares: Tensor) -> Params:
        lengths = norms(updates)
        bound = self.most * median(lengths)
        factors = torch.where(lengths > bound, bound / lengths.clamp(min=torch.finfo(lengths.dtype).tiny), 1.0)
        # A setting of 0 in a sweep: no clipping.
        factors = torch.where(torch.as_tensor(self.most, device=lengths.device) > 0, factors, 1.0)

        def shorten(leaf: Tensor) -> Tensor:
            return leaf * factors.to(leaf.dtype).view(-1, *[1] * (leaf.dim() - 1))

        return self.of.combine(tree.map(shorten, updates), shares)


def norms(updates: Params) -> Tensor:
    """[n] of updates that carry a client axis [n, ...]."""
    flat = [leaf.reshape(leaf.shape[0], -1).float() for leaf in updates.values()]
    largest = torch.stack([leaf.abs().amax(1) for leaf in flat]).amax(0).clamp(min=torch.finfo(torch.float32).tiny)
    scaled = [leaf / largest[:, None] for leaf in flat]  # the square of a large float32 is not finite
    return largest * torch.stack([leaf.square().sum(1) for leaf in scaled]).sum(0).sqrt()


def median(lengths: Tensor) -> Tensor:
    """[n] -> []; of an even number the mean of the two in the middle."""
    ordered = lengths.sort().values
    count = len(lengths)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
