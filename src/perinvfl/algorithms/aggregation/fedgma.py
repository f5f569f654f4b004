"""FedGMA's mask: Tenison et al., Gradient Masked Averaging for Federated Learning, 2022; `agreement` of any method."""

import torch
from torch import Tensor

from perinvfl.core import tree
from perinvfl.core.tree import Params


def damped(update: Params, signs: Params, least: float | Tensor) -> Params:
    """The mean update with the coordinates damped on whose direction clients disagree, given the mean of their signs.

    m = 1 where |mean sign| ≥ τ, else |mean sign|.
    """

    def damp(mean: Tensor, sign: Tensor) -> Tensor:
        return mean * torch.where(sign.abs() < least, sign.abs(), 1.0)

    return tree.map(damp, update, signs)
