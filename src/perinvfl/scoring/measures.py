"""What a client's or all clients' predictions are worth: scores, intervals over samples, a threshold, calibration.

>>> sample = Sample("binary", np.array([0.0, 0, 1, 1]), np.array([[-2.0], [0.5], [-0.5], [3.0]]))
>>> found = scores(sample)
>>> found["accuracy"], found["auroc"]
(0.5, 0.75)
>>> confusion_at([sample])
[[1, 1], [1, 1]]
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perinvfl.results.score_names import MEASURES, measures_for
from perinvfl.scoring.sample_scores import BINS, FEW, SCORERS, Floats, Sample, bin_of, confidence, mean_known, ranked

LEVEL = 0.95  # of intervals
RESAMPLES, FEWEST_RESAMPLES, MOST_DRAWS = 1000, 200, 20_000_000  # fewer where there are many samples
AT_ONCE = 2_000_000  # weights in memory


def scores(sample: Sample, threshold: float = 0.5, names: Sequence[str] = ()) -> dict[str, float | None]:
    """Each score by its name; None where it is not defined, as an AUROC of one class.

    threshold: the probability from which on a sample counts as of the second of two classes.
    """
    found = {}
    for name in names or measures_for(sample.task):
        value = math.nan
        if len(sample):
            value = float(SCORERS[name](sample, np.ones((1, len(sample))), threshold)[0])
        found[name] = None if math.isnan(value) else value
    return found


def mean_scores(
    clients: Sequence[Sample], threshold: float = 0.5, names: Sequence[str] = ()
) -> dict[str, float | None]:
    """The mean over the clients that have the score."""
    each = [scores(sample, threshold, names) for sample in clients if len(sample)]
    found: dict[str, float | None] = {}
    for name in names or measures_for(clients[0].task):
        known = [value for of_client in each if (value := of_client[name]) is not None]
        found[name] = sum(known) / len(known) if known else None
    return found


def intervals(
    clients: Sequence[Sample],
    threshold: float = 0.5,
    names: Sequence[str] = (),
    seed: int = 0,
    together: bool = False,
) -> dict[str, tuple[float, float] | None]:
    """95 % bootstrap intervals over samples of the mean over these clients: each client's samples are drawn anew, the
    models and the threshold stay. One client alone has the interval of its own score.

    together: all clients are tested on the same samples, so the same are drawn for all.
    """
    names = names or measures_for(clients[0].task)
    there = [sample for sample in clients if len(sample)]
    if not there:
        return dict.fromkeys(names)
    source, largest = np.random.default_rng(seed), max(map(len, there))
    resamples = int(min(RESAMPLES, max(FEWEST_RESAMPLES, MOST_DRAWS // largest)))
    by_name: dict[str, list[Floats]] = {name: [] for name in names}
    for sample in there:
        source = np.random.default_rng(seed) if together else source
        for name, values in _resampled_scores(sample, threshold, names, resamples, source).items():
            by_name[name].append(values)
    found: dict[str, tuple[float, float] | None] = {}
    for name, parts in by_name.items():
        span = _middle(mean_known(parts)) if parts else None
        if span is not None and MEASURES[name].moved:
            value = mean_scores(there, threshold, [name])[name]
            assert value is not None
            bias = float(np.nanmean(mean_known(parts))) - value
            span = max(0.0, span[0] - bias), max(0.0, span[1] - bias)
        found[name] = span
    return found


def _resampled_scores(
    sample: Sample, threshold: float, names: Sequence[str], resamples: int, source: np.random.Generator
) -> dict[str, Floats]:
    """[resamples] of each score that the sample has."""
    known = [name for name, value in scores(sample, threshold, names).items() if value is not None]
    parts: dict[str, list[Floats]] = {name: [] for name in known}
    at_once = max(1, AT_ONCE // len(sample))
    for first in range(0, resamples, at_once):
        weights = _resampled(source, len(sample), min(at_once, resamples - first))
        for name in known:
            parts[name].append(SCORERS[name](sample, weights, threshold))
    return {name: np.concatenate(values) for name, values in parts.items()}


def _resampled(source: np.random.Generator, n: int, times: int) -> Floats:
    """[times, n] how often each sample is drawn, of n drawn with replacement."""
    drawn = source.integers(0, n, (times, n)) + n * np.arange(times)[:, None]
    return np.bincount(drawn.ravel(), minlength=times * n).reshape(times, n).astype(float)


def _middle(values: Floats) -> tuple[float, float] | None:
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Threshold:
    """From which probability on a sample counts as of the second class, and on what that was chosen."""

    value: float
    chosen: bool  # False: there was nothing to choose it on, and it is 0.5
    counts: tuple[int, ...] = ()  # held-out samples of each class

    @property
    def few(self) -> bool:
        return self.chosen and min(self.counts) < FEW


def choose_threshold(held_out: Sequence[Sample]) -> Threshold:
    """Where sensitivity + specificity is largest on the held-out samples of all clients; of equals nearest to 0.5."""
    there = [sample for sample in held_out if len(sample) and sample.task == "binary"]
    if not there:
        return Threshold(0.5, False)
    positive = np.concatenate([sample.labels == 1 for sample in there])
    probability = np.concatenate([sample.probabilities[:, 1] for sample in there])
    counts = (int((~positive).sum()), int(positive.sum()))
    if not all(counts):
        return Threshold(0.5, False, counts)
    inside, rest = ranked(positive, probability, np.ones((1, len(positive))))
    gained = np.cumsum(inside[0]) / counts[1] - np.cumsum(rest[0]) / counts[0]  # Youden's J, from the highest down
    distinct = np.unique(probability)[::-1]
    between = np.append((distinct[:-1] + distinct[1:]) / 2, distinct[-1] / 2)
    best = between[gained >= gained.max() - 1e-12]
    return Threshold(float(best[np.abs(best - 0.5).argmin()]), True, counts)


def confusion_at(clients: Sequence[Sample], threshold: float = 0.5) -> list[list[int]]:
    """How many samples of each true class (row) are said to be of each class (column), over these clients."""
    number = clients[0].classes
    table = np.zeros((number, number), dtype=np.int64)
    for sample in clients:
        said = sample.predicted
        if sample.task == "binary":
            said = (sample.probabilities[:, 1] >= threshold).astype(np.int64)
        np.add.at(table, (sample.labels.astype(int), said), 1)
    return [list(map(int, row)) for row in table]


def calibration_bins(clients: Sequence[Sample]) -> list[dict[str, float | int]]:
    """Ten bins of the predicted probability over these clients: how many samples, the mean probability, how often it
    came true. Of two classes, the probability of the second; of more, of the likeliest. Empty bins are left out."""
    pairs = [confidence(sample) for sample in clients if len(sample)]
    if not pairs:
        return []
    probability, came_true = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    place, found = bin_of(probability), []
    for number in range(BINS):
        own = place == number
        if own.any():
            found.append(
                {
                    "from": number / BINS,
                    "to": (number + 1) / BINS,
                    "samples": int(own.sum()),
                    "predicted": float(probability[own].mean()),
                    "observed": float(came_true[own].mean()),
                }
            )
    return found
