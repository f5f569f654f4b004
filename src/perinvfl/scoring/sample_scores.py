"""Scores of one client's predictions: pure functions of labels and outputs, in numpy.

Every score is written for weighted samples. Weights of one give the score; the counts of each sample in a resample
give the bootstrap. Several classes: the mean over classes, each against the rest, where not said otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FEW = 10  # a score that rests on fewer samples of a class is marked
BINS = 10  # of predicted probabilities


@dataclass(frozen=True)
class Sample:
    """Held-out samples of one client, and what a model says about them."""

    task: str  # binary, multiclass or regression
    labels: Floats  # [n] numbers of classes; values of a regression in the label's own unit
    outputs: Floats  # [n, outputs] logits; of a regression predictions, in the label's own unit

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def probabilities(self) -> Floats:
        """[n, classes]"""
        if self.task == "multiclass":
            shifted = np.exp(self.outputs - self.outputs.max(1, keepdims=True))
            return shifted / shifted.sum(1, keepdims=True)
        one = np.exp(-np.logaddexp(0, -self.outputs[:, 0]))
        return np.stack([1 - one, one], 1)

    @property
    def classes(self) -> int:
        return max(2, self.outputs.shape[1])

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """[n] the likeliest class."""
        return self.outputs.argmax(1) if self.task == "multiclass" else (self.outputs[:, 0] > 0).astype(np.int64)

    @property
    def counts(self) -> list[int]:
        """Samples of each class; of a regression, all of them."""
        if self.task == "regression":
            return [len(self)]
        return [int((self.labels == number).sum()) for number in range(self.classes)]

    @property
    def few(self) -> bool:
        """Whether there are too few samples, or too few of one class, to trust a score."""
        return min(self.counts) < FEW


def sample_of(
    task: str, labels: NDArray[Any], outputs: NDArray[Any], label_mean: float = 0.0, label_scale: float = 1.0
) -> Sample:
    """From labels [n] and outputs [n, outputs] as models are trained on them: a regression's get their own unit."""
    y, z = labels.astype(np.float64), outputs.astype(np.float64)
    if task == "regression":
        y, z = (label_mean + label_scale * values for values in (y, z))
    return Sample(task, y, z)


# Scores: of a sample, weights [B, n] and a threshold, [B] values; not a number where a score is not defined -----------
Scorer = Callable[[Sample, Floats, float], Floats]


def _share(weights: Floats, values: NDArray[Any], among: NDArray[Any] | None = None) -> Floats:
    """[B] weighted mean of values, over all samples or among some."""
    there = np.ones(len(values)) if among is None else among.astype(float)
    total = weights @ there
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, weights @ (values * there) / total, np.nan)


def mean_known(parts: Sequence[Floats]) -> Floats:
    """The mean over the parts (classes, clients) that are numbers, [B]."""
    stacked = np.stack(parts)
    known = ~np.isnan(stacked)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, stacked, 0).sum(0) / np.maximum(count, 1), np.nan)


def _accuracy(sample: Sample, weights: Floats, threshold: float) -> Floats:
    return _share(weights, sample.predicted == sample.labels)


def _balanced(sample: Sample, weights: Floats, threshold: float) -> Floats:
    right = sample.predicted == sample.labels
    return mean_known([_share(weights, right, sample.labels == number) for number in range(sample.classes)])


def _one_against_rest(sample: Sample) -> list[tuple[NDArray[np.bool_], Floats]]:
    """Whether a sample is of the class, and the probability of it; of two classes, for the second."""
    numbers = [1] if sample.task == "binary" else range(sample.classes)
    # By the logit where there are two classes: probabilities near 1 are no longer told apart.
    scored = sample.outputs[:, 0] if sample.task == "binary" else None
    return [(sample.labels == n, sample.probabilities[:, n] if scored is None else scored) for n in numbers]


def ranked(of_class: NDArray[np.bool_], scored: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """[B, U] weights of the class and of the rest at each distinct score, from the highest down."""
    order = np.argsort(-scored, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(scored[order]) != 0]))
    inside = weights[:, order] * of_class[order]
    return np.add.reduceat(inside, starts, 1), np.add.reduceat(weights[:, order] - inside, starts, 1)


def _auroc(sample: Sample, weights: Floats, threshold: float) -> Floats:
    parts = []
    for of_class, scored in _one_against_rest(sample):
        inside, rest = ranked(of_class, scored, weights)
        pairs = inside.sum(1) * rest.sum(1)
        won = (np.cumsum(inside, 1) - inside / 2) * rest  # pairs in which the sample of the class ranks higher
        with np.errstate(invalid="ignore", divide="ignore"):
            parts.append(np.where(pairs > 0, won.sum(1) / pairs, np.nan))
    return mean_known(parts)


def _average_precision(sample: Sample, weights: Floats, threshold: float) -> Floats:
    parts = []
    for of_class, scored in _one_against_rest(sample):
        inside, rest = ranked(of_class, scored, weights)
        found, total = np.cumsum(inside, 1), inside.sum(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = np.nan_to_num(found / (found + np.cumsum(rest, 1)))
            parts.append(np.where(total > 0, (inside * precision).sum(1) / total, np.nan))
    return mean_known(parts)


def _called(sample: Sample, number: int, threshold: float) -> NDArray[np.bool_]:
    """Which samples are said to be of a class: of two, by the threshold; of more, by the likeliest class."""
    if sample.task == "binary":
        return (sample.probabilities[:, 1] >= threshold) == bool(number)
    return sample.predicted == number


def _sensitivity(sample: Sample, weights: Floats, threshold: float) -> Floats:
    numbers = [1] if sample.task == "binary" else range(sample.classes)
    return mean_known([_share(weights, _called(sample, n, threshold), sample.labels == n) for n in numbers])


def _specificity(sample: Sample, weights: Floats, threshold: float) -> Floats:
    numbers = [1] if sample.task == "binary" else range(sample.classes)
    return mean_known([_share(weights, ~_called(sample, n, threshold), sample.labels != n) for n in numbers])


def _brier(sample: Sample, weights: Floats, threshold: float) -> Floats:
    truth = np.eye(sample.classes)[sample.labels.astype(int)]
    squares = np.square(sample.probabilities - truth)
    return _share(weights, squares[:, 1] if sample.task == "binary" else squares.sum(1))


def confidence(sample: Sample) -> tuple[Floats, Floats]:
    """[n] a predicted probability and whether it came true: of the second of two classes, else of the likeliest."""
    if sample.task == "binary":
        return sample.probabilities[:, 1], sample.labels
    return sample.probabilities.max(1), (sample.predicted == sample.labels).astype(float)


def bin_of(probability: Floats) -> NDArray[np.int64]:
    return np.minimum((probability * BINS).astype(np.int64), BINS - 1)


def _calibration(sample: Sample, weights: Floats, threshold: float) -> Floats:
    probability, came_true = confidence(sample)
    inside = np.eye(BINS)[bin_of(probability)]  # [n, BINS]
    gaps = weights @ ((probability - came_true)[:, None] * inside)
    return np.abs(gaps).sum(1) / weights.sum(1)


def _r2(sample: Sample, weights: Floats, threshold: float) -> Floats:
    centred = sample.labels - sample.labels.mean()
    total = weights @ np.square(centred) - np.square(weights @ centred) / weights.sum(1)
    left = weights @ np.square(sample.labels - sample.outputs[:, 0])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 1e-12 * max(1.0, float(np.square(centred).sum())), 1 - left / total, np.nan)


def _mae(sample: Sample, weights: Floats, threshold: float) -> Floats:
    return _share(weights, np.abs(sample.labels - sample.outputs[:, 0]))


SCORERS: dict[str, Scorer] = {
    "accuracy": _accuracy,
    "balanced": _balanced,
    "auroc": _auroc,
    "average-precision": _average_precision,
    "sensitivity": _sensitivity,
    "specificity": _specificity,
    "brier": _brier,
    "calibration-error": _calibration,
    "r2": _r2,
    "mae": _mae,
}
