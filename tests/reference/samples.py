"""The real samples of each client, and what a discounted shortcut adds to their logits."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from perinvfl.data.federation import Federation


class Samples(NamedTuple):
    """Real samples of one client, or a batch of them."""

    x: Tensor
    y: Tensor
    context: Tensor
    offset: Tensor  # added to the logits while training; 0 but where a shortcut is discounted


Batch = Callable[[int], Samples]  # the samples of the n-th step


def samples_of(federation: Federation) -> list[Samples]:
    shares = []
    for x, y, context in zip(*federation.train, strict=True):
        real = context >= 0
        labels = y[real] if federation.task == "multiclass" else y[real].double()
        own, offset = context[real], torch.zeros(int(real.sum()), dtype=torch.float64)
        if federation.split == "discount":
            offset = torch.tensor(shortcut_offsets(labels.tolist(), own.tolist()), dtype=torch.float64)
        if federation.split in ("discount", "judge"):
            own = torch.tensor([number // 2 for number in own.tolist()])
        shares.append(Samples(x[real].double(), labels, own, offset))
    return shares


def log_odds_of_answers(y: list[float], context: list[int]) -> dict[int, float]:
    """By what the reference model said: log P(y = 1 | said) / P(y = 0 | said) less the log-odds of y, by counting.

    An odd context says that the reference model was wrong; each count is one larger than it is.
    """
    counts = {(said, label): 1 for said in (0, 1) for label in (0, 1)}
    labels = {0: 1, 1: 1}
    for label, number in zip(map(int, y), context, strict=True):
        counts[1 - label if number % 2 else label, label] += 1
        labels[label] += 1
    prior = math.log(labels[1] / labels[0])
    return {said: math.log(counts[said, 1] / counts[said, 0]) - prior for said in (0, 1)}


def shortcut_offsets(y: list[float], context: list[int]) -> list[float]:
    """What the discount adds to the logit of each sample."""
    odds = log_odds_of_answers(y, context)
    return [odds[1 - int(label) if number % 2 else int(label)] for label, number in zip(y, context, strict=True)]
