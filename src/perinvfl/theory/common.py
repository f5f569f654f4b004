"""What every experiment shares: its shape, the fit of a power law, the mean and the spread over seeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

Record = dict[str, Any]


@dataclass(frozen=True)
class Theory:
    """One experiment: its settings, what it computes (with "verdict", a sentence), and its figure from the record."""

    settings: type
    run: Callable[[Any], Record]
    draw: Callable[[Record], Any]  # an Altair chart


class Slope(NamedTuple):
    slope: float
    low: float  # 95 % confidence band
    high: float
    intercept: float


def fit_power_law(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Least squares of log y on log x; the band is that of Student's t.

    >>> fit_power_law([1, 10, 100, 1000], [5.0, 0.5, 0.05, 0.005]).slope
    -1.0
    """
    u, v = torch.tensor(x, dtype=torch.float64).log(), torch.tensor(y, dtype=torch.float64).log()
    centred = u - u.mean()
    slope = (centred @ v) / (centred @ centred)
    intercept = v.mean() - slope * u.mean()
    residual = v - slope * u - intercept
    freedom = len(x) - 2
    error = math.sqrt(float(residual @ residual) / freedom / float(centred @ centred))
    margin = student_95(freedom) * error
    value = round(float(slope), 12)
    return Slope(value, value - margin, value + margin, float(intercept))


@cache
def student_95(freedom: int) -> float:
    """The 97.5 % point of Student's t, by bisection on its distribution function.

    >>> round(student_95(6), 3)
    2.447
    """
    density = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def below(t: float) -> float:
        grid = torch.linspace(0, t, 20_001, dtype=torch.float64)
        return 0.5 + float(torch.trapezoid(density * (1 + grid.square() / freedom) ** (-(freedom + 1) / 2), grid))

    low, high = 0.0, 100.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < 0.975 else (low, middle)
    return high


def mean_and_std(values: Tensor) -> dict[str, float]:
    """Over seeds [S]."""
    spread = float(values.double().std()) if values.numel() > 1 else 0.0
    return {"mean": float(values.double().mean()), "std": spread}
