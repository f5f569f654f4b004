"""Scores by (class, context): what an accuracy hides when one class is rare.

From how many samples of each group are right and how many there are, per client, groups ordered by 2 · class + context.
Groups are pooled over clients, because at one client a group may hold a single sample.
"""

from collections.abc import Callable, Sequence
from typing import Literal

Counts = Sequence[Sequence[float]]  # per client, per group
Score = Literal["accuracy", "balanced", "worst-group"]


def balanced_accuracy(right: Counts, there: Counts) -> float:
    """The mean of the accuracies of the classes.

    >>> balanced_accuracy([[8, 0, 0, 1]], [[8, 2, 1, 1]])
    0.65
    """
    hits, samples = _pooled(right), _pooled(there)
    classes = [(hits[c] + hits[c + 1], samples[c] + samples[c + 1]) for c in range(0, len(hits), 2)]
    shares = [hit / count for hit, count in classes if count]
    return sum(shares) / len(shares)


def worst_group_accuracy(right: Counts, there: Counts) -> float:
    """The accuracy of the group that fares worst.

    >>> worst_group_accuracy([[8, 1, 0, 1]], [[8, 2, 0, 1]])
    0.5
    """
    return min(hit / count for hit, count in zip(_pooled(right), _pooled(there), strict=True) if count)


def constant_hits(there: Counts, guesses: Sequence[int]) -> Counts:
    """What is right when each client always says the same class."""
    return [
        [count if group // 2 == guess else 0 for group, count in enumerate(row)]
        for row, guess in zip(there, guesses, strict=True)
    ]


def _pooled(counts: Counts) -> list[float]:
    return [sum(column) for column in zip(*counts, strict=True)]


GROUP_SCORES: dict[str, Callable[[Counts, Counts], float]] = {
    "balanced": balanced_accuracy,
    "worst-group": worst_group_accuracy,
}
