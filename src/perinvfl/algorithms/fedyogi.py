"""FedYogi: Reddi et al., Adaptive Federated Optimization, 2021, Algorithm 2."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.fedadam import FedAdam


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAdam with Yogi's second moment, which moves towards Δ² by steps that do not depend on how far it is."""

    title: ClassVar[str] = "FedYogi"

    def second_moment(self, v: Tensor, update: Tensor) -> Tensor:
        """v ← v − (1 − β_2) Δ² sign(v − Δ²)."""
        squared = update.square()
        return v - (1 - self.memory) * squared * torch.sign(v - squared)
