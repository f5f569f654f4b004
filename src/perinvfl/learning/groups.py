"""Scores by (class, context): what an accuracy hides when one class is rare.

From how many samples of each group are right and how many there are, per client, groups ordered by 2 · class + context.
Each client's score is its own and the mean is taken over clients: pooled over clients, a model that says one class at
one client and the other at the next would look as if it could tell them apart.
"""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Literal

Counts = Sequence[Sequence[float]]  # per client, per group
Score = Literal["accuracy", "balanced", "worst-group"]


def balanced_accuracy(right: Counts, there: Counts) -> float:
    """The mean of the accuracies of the classes a client has.

    >>> balanced_accuracy([[8, 0, 0, 1]], [[8, 2, 1, 1]])
    0.65
    """
    pairs = [(_classes(hits), _classes(counts)) for hits, counts in zip(right, there, strict=True)]
    return fmean(fmean(_shares(hits, counts)) for hits, counts in pairs)


def worst_group_accuracy(right: Counts, there: Counts) -> float:
    """The accuracy of the group that fares worst at a client, of those it has.

    >>> worst_group_accuracy([[8, 1, 0, 1]], [[8, 2, 0, 1]])
    0.5
    """
    return fmean(min(_shares(hits, counts)) for hits, counts in zip(right, there, strict=True))


def pooled(cases: Sequence[Counts]) -> Counts:
    """Several test contexts as one."""
    return [[sum(group) for group in zip(*rows, strict=True)] for rows in zip(*cases, strict=True)]


def constant_hits(there: Counts, guesses: Sequence[int]) -> Counts:
    """What is right when each client always says the same class."""
    return [
        [count if group // 2 == guess else 0 for group, count in enumerate(row)]
        for row, guess in zip(there, guesses, strict=True)
    ]


def _classes(groups: Sequence[float]) -> list[float]:
    return [groups[place] + groups[place + 1] for place in range(0, len(groups), 2)]


def _shares(right: Sequence[float], there: Sequence[float]) -> list[float]:
    return [hits / count for hits, count in zip(right, there, strict=True) if count]


GROUP_SCORES: dict[str, Callable[[Counts, Counts], float]] = {
    "balanced": balanced_accuracy,
    "worst-group": worst_group_accuracy,
}
