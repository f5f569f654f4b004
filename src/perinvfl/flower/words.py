"""Whole numbers as they travel: in words of a few bits, which means and secure aggregation add without a loss."""

import torch
from torch import Tensor

from perinvfl.core.tree import Params

BITS, WORDS = 12, 4
UNIT = 2.0**-BITS  # of a word, as it travels: all lie between 0 and 1


def encode_sums(sums: Tensor) -> Params:
    """[size] whole numbers from 0 -> {"words": [WORDS, size]}, the lowest first."""
    parts = [(sums >> (BITS * place)) & (2**BITS - 1) for place in range(WORDS)]
    return {"words": torch.stack(parts).float() * UNIT}


def decode_sums(mean: Params, sites: int) -> Tensor:
    """The sums over sites from the mean of what they sent."""
    words = (mean["words"].double() * sites / UNIT).round().long()
    return sum((word << (BITS * place) for place, word in enumerate(words)), torch.zeros_like(words[0]))
