"""Calibration, invariance and shift as pure functions of one client's predictions."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from perinvfl.data.federation import Task
from perinvfl.learning import risks

BINS = 10


def calibration_error(task: Task, logits: Tensor, y: Tensor) -> float:
    """How far the model's confidence is from the truth; 0 is right.

    Classes: the expected calibration error, |confidence − accuracy| of the predicted class in ten equal bins from
    chance to 1, weighted by the samples in each. Regression: |w − 1| for the factor w that would fit best.
    """
    if task == "regression":
        z = logits[:, 0]
        return float((z @ y / (z @ z).clamp(min=1e-12) - 1).abs())
    probability = class_probabilities(task, logits)
    confidence, predicted = probability.max(1)
    right = (predicted == y.long()).float()
    lowest = 1 / probability.shape[1]
    place = ((confidence - lowest) / (1 - lowest) * BINS).long().clamp(0, BINS - 1)
    sums = torch.zeros(BINS).index_add(0, place, confidence - right)
    return float(sums.abs().sum() / len(y))


def overconfidence(task: Task, logits: Tensor, y: Tensor) -> float:
    """Mean confidence less accuracy: above 0, the model is surer than it should be. 0 for regression."""
    if task == "regression":
        return 0.0
    confidence, predicted = class_probabilities(task, logits).max(1)
    return float((confidence - (predicted == y.long()).float()).mean())


def class_probabilities(task: Task, logits: Tensor) -> Tensor:
    if task == "multiclass":
        return torch.softmax(logits, 1)
    one = torch.sigmoid(logits[:, :1])
    return torch.cat([1 - one, one], 1)


def penalty(task: Task, logits: Tensor, y: Tensor) -> float:
    """IRMv1: the squared gradient of the risk in the scale of the logits."""
    return float(risks.scale_gradients(task, logits, y).mean().square())


def agreement(task: Task, one: Tensor, other: Tensor) -> float:
    """Share of samples with the same predicted class; for regression the correlation of the predictions."""
    if task == "multiclass":
        return float((one.argmax(1) == other.argmax(1)).float().mean())
    if task == "binary":
        return float(((one[:, 0] > 0) == (other[:, 0] > 0)).float().mean())
    return correlation(one[:, 0], other[:, 0])


def correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's; 0 where one of them does not vary."""
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    norm = float(a.norm() * b.norm())
    return float(a @ b) / norm if norm > 1e-12 else 0.0


def twice_as_far(values: Sequence[float], larger_is_worse: bool) -> float:
    """The worst context, moved as far again from the mean of all: contexts that differ twice as much as these do.

    >>> twice_as_far([0.2, 0.4], larger_is_worse=True), twice_as_far([0.9, 0.5], larger_is_worse=False)
    (0.5, 0.3)
    """
    mean = sum(values) / len(values)
    worst = max(values) if larger_is_worse else min(values)
    return round(2 * worst - mean, 12)


def one_step_further(places: Sequence[float], values: Sequence[float], larger_is_worse: bool) -> tuple[float, float]:
    """A line through (place, value), continued one step past the end where the values are worse; places within [0, 1]
    stay there.

    >>> one_step_further([0.1, 0.2, 0.3], [0.5, 0.6, 0.7], larger_is_worse=False)
    (0.0, 0.4)
    """
    x, y = torch.tensor(places, dtype=torch.float64), torch.tensor(values, dtype=torch.float64)
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    step = float((x.max() - x.min()) / (len(places) - 1))
    upward = (slope > 0) == larger_is_worse
    place = float(x.max()) + step if upward else float(x.min()) - step
    if float(x.min()) >= 0 and float(x.max()) <= 1:
        place = min(1.0, max(0.0, place))
    return round(place, 9), round(float(y.mean()) + slope * (place - float(x.mean())), 9)


def reverse_columns(task: Task, x: Tensor, y: Tensor, columns: Sequence[int], source: torch.Generator) -> Tensor | None:
    """x whose named columns come from a sample with another answer: the next class, or for regression the sample whose
    y has the mirrored rank. What the columns say about y is then turned round; None where all answers are the same."""
    if task == "regression":
        order = y.argsort()
        donors = torch.empty_like(order)
        donors[order] = order.flip(0)
    else:
        present = y.long().unique().tolist()
        if len(present) < 2:
            return None
        donors = torch.empty(len(y), dtype=torch.int64)
        for place, label in enumerate(present):
            members = (y.long() == label).nonzero()[:, 0]
            others = (y.long() == present[(place + 1) % len(present)]).nonzero()[:, 0]
            donors[members] = others[torch.randint(len(others), (len(members),), generator=source)]
    turned = x.clone()
    turned[:, list(columns)] = x[donors][:, list(columns)]
    return turned


def rise_when_shuffled(
    risk: Callable[[Tensor], float], x: Tensor, column: int, repeats: int, source: torch.Generator
) -> list[float]:
    """How much the risk rises when one column is shuffled among the samples, once for each repeat."""
    base = risk(x)
    rises = []
    for _ in range(repeats):
        shuffled = x.clone()
        shuffled[:, column] = x[torch.randperm(len(x), generator=source), column]
        rises.append(risk(shuffled) - base)
    return rises


def heterogeneity(correlations: Sequence[float], sizes: Sequence[int]) -> float:
    """Probability of correlations at least this different if all were the same: Fisher's z, χ² with k − 1 degrees.

    >>> heterogeneity([0.5, 0.5], [100, 100]), heterogeneity([0.9, -0.5], [100, 100]) < 1e-6
    (1.0, True)
    """
    z = torch.atanh(torch.tensor(correlations, dtype=torch.float64).clamp(-0.999, 0.999))
    weight = torch.tensor([max(1, size - 3) for size in sizes], dtype=torch.float64)
    mean = (weight * z).sum() / weight.sum()
    statistic = (weight * (z - mean).square()).sum()
    freedom = torch.tensor((len(correlations) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))
