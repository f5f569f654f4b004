"""Values by which a column identifies the site: gaps, or one value far from all others that stands for a gap, which are
common at one site and rare at another. Where the label differs between sites as well, a model reads the site off such
a habit, and with it how common the label is there; at a site with other habits it is wrong."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.audit.table import AuditColumn, Table
from perinvfl.learning.slope_test import chance

LEAST_DIFFERENCE = 0.2  # between the shares of rows at two sites
FAR = 0.5  # times the distance between the quartiles of all other values
LEAST_VALUES = 10  # of fewer distinct values, an extreme one is a level and no sign
MOST_CHANCE = 0.01


@dataclass(frozen=True)
class Habit:
    value: float | None  # that stands for something else; None: the value is missing
    shares: dict[str, float]  # by site, of its rows
    rows: int
    label_with: float  # share of the last class (the mean of a number) in rows that have it,
    label_without: float  # and in the others
    chance: float  # of such a difference of the label

    @property
    def tells_the_label(self) -> bool:
        return self.chance < MOST_CHANCE


def find_habit(table: Table, column: AuditColumn) -> tuple[Habit | None, Tensor]:
    """The habit that differs most between sites, and [n] in which rows a value means what it says."""
    values = column.values
    missing, odd = values.isnan(), torch.zeros(len(values), dtype=torch.bool)
    value = None if column.category else odd_value(values[~missing & ~table.held])
    if value is not None:
        odd = values == value
    found = [_habit(table, None, missing)]
    if value is not None:
        found.append(_habit(table, value, odd))
    telling = [h for h in found if h is not None]
    return max(telling, key=lambda h: max(h.shares.values()), default=None), ~missing & ~odd


def odd_value(values: Tensor) -> float | None:
    """The smallest or the largest value, if it is common and lies apart from all others."""
    distinct, counts = values.unique(return_counts=True)
    if len(distinct) < LEAST_VALUES:
        return None
    for end, rest in ((0, slice(1, None)), (-1, slice(None, -1))):
        others = values[values != distinct[end]]
        quartiles = torch.quantile(others, torch.tensor([0.25, 0.75], dtype=others.dtype))
        spread = float(quartiles[1] - quartiles[0])
        gap = float((distinct[rest] - distinct[end]).abs().min())
        if gap > FAR * spread > 0 and int(counts[end]) > max(2, 3 * float(counts[rest].double().mean())):
            return float(distinct[end])
    return None


def _habit(table: Table, value: float | None, has: Tensor) -> Habit | None:
    seen = ~table.held
    shares = {
        name: float(has[seen & (table.client == number)].double().mean())
        for number, name in enumerate(table.clients)
        if bool((seen & (table.client == number)).any())
    }
    if max(shares.values()) - min(shares.values()) < LEAST_DIFFERENCE:
        return None
    y = table.y == len(table.classes) - 1 if table.classes else table.y
    having, others = y[seen & has].double(), y[seen & ~has].double()
    if len(having) < 2 or len(others) < 2:
        return None
    error = math.sqrt(float(having.var()) / len(having) + float(others.var()) / len(others))
    apart = float(having.mean() - others.mean())
    likely = chance((apart / error) ** 2, 1) if error > 0 else float(apart == 0)
    return Habit(value, shares, len(having), float(having.mean()), float(others.mean()), likely)
