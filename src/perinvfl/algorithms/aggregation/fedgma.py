"""FedGMA's mask: Tenison et al., Gradient Masked Averaging for Federated Learning, 2022; `agreement` of any method."""

from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.algorithms.aggregation.base import Aggregation
from perinvfl.algorithms.aggregation.mean import Mean
from perinvfl.core import tree
from perinvfl.core.tree import Params


@dataclass(frozen=True)
class Masked(Aggregation):
    """Another aggregation's update, damped in the coordinates on whose direction the clients disagree.

    m = 1 where |mean sign| ≥ τ, else |mean sign|.
    """

    of: Aggregation
    least: float | Tensor  # τ

    def combine(self, updates: Params, shares: Tensor) -> Params:
        signs = Mean().combine(tree.map(torch.sign, updates), shares)

        def damp(mean: Tensor, sign: Tensor) -> Tensor:
            return mean * torch.where(sign.abs() < self.least, sign.abs(), 1.0)

        return tree.map(damp, self.of.combine(updates, shares), signs)
