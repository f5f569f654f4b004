"""The mean of the updates, as in FedAvg (McMahan et al. 2017)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.aggregation.base import Aggregation, Gathering
from perinvfl.core import tree
from perinvfl.core.tree import Params


@dataclass(frozen=True)
class Mean(Aggregation):
    needs_updates: ClassVar[bool] = False

    def combine(self, updates: Params, shares: Tensor) -> Params:
        return tree.map(lambda leaf: torch.einsum("n,n...->...", shares.to(leaf.dtype), leaf), updates)

    def begin(self) -> Gathering:
        return _RunningSum()


class _RunningSum:
    """One model in memory, however many clients."""

    def __init__(self) -> None:
        self.total: Params = {}

    def add(self, update: Params, share: float) -> None:
        if not self.total:
            self.total = tree.map(lambda leaf: leaf * share, update)
        else:
            tree.map(lambda total, leaf: total.add_(leaf, alpha=share), self.total, update)

    def result(self, shares: Tensor) -> Params:
        return self.total
