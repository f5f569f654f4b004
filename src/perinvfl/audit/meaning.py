"""How a column relates to the label in each context and at each site, and whether that differs beyond chance.

The relation is how far the column's means lie apart between the classes, in its standard deviations within a class
(of a number as label: by how many of its deviations the column moves when the label moves by one of its own). It does
not change when a class is more common somewhere, as a correlation would.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.audit.table import AuditColumn, Table
from perinvfl.learning.slope_test import chance
from perinvfl.learning.slopes import LEAST_SAMPLES

WIDTH = 1.96  # standard errors to either side: 95 %


@dataclass(frozen=True)
class Relation:
    """In one context or at one site."""

    where: str
    rows: int
    strength: float | None  # None: too few rows, of one class alone, or the column does not vary
    error: float = 0.0  # standard error
    held_out: bool = False

    @property
    def interval(self) -> tuple[float, float] | None:
        if self.strength is None:
            return None
        return self.strength - WIDTH * self.error, self.strength + WIDTH * self.error


@dataclass(frozen=True)
class Meaning:
    contexts: list[Relation]
    sites: list[Relation]
    overall: float  # strength within contexts of sites, over all of them
    overall_chance: float  # of such a strength if there were none
    contexts_chance: float  # of such differences if there were none; of contexts that train
    sites_chance: float
    of_class: str = ""  # of several classes, the one that the column tells best


@dataclass(frozen=True)
class _Cell:
    client: int
    context: int
    held: bool
    rows: int
    slope: float
    weight: float


def meaning_of(table: Table, column: AuditColumn, usable: Tensor | None = None) -> Meaning:
    """usable: rows whose value means what it says; all if not given."""
    usable = torch.ones(len(table.y), dtype=torch.bool) if usable is None else usable
    targets = table.targets
    best = max(range(targets.shape[1]), key=lambda t: _strength_of(_cells(table, column, targets[:, t], usable)))
    cells, noise = _cells(table, column, targets[:, best], usable)
    scale = math.sqrt(noise) if noise > 0 else 1.0
    seen = [cell for cell in cells if not cell.held]
    contexts = [
        _relation(name, [c for c in cells if c.context == number], scale)
        for number, name in enumerate(table.contexts)
        if len(table.contexts) > 1
    ]
    sites = [
        _relation(name, [c for c in seen if c.client == number], scale) for number, name in enumerate(table.clients)
    ]
    whole = _relation("", seen, scale)
    of_class = table.classes[best] if table.task == "multiclass" else ""
    statistic = 0.0 if whole.strength is None else (whole.strength / max(whole.error, 1e-12)) ** 2
    return Meaning(
        contexts, sites, whole.strength or 0.0, chance(statistic, 1),
        _contexts_chance(contexts, seen, scale), _differ([sites]), of_class,
    )  # fmt: skip


def reading_of(table: Table, column: AuditColumn, target: Tensor) -> Tensor:
    """[n] the column as one number a row: a number itself, of a category what goes with the target best."""
    if not column.category:
        return table.x[:, column.places[0]]
    x = table.x[:, list(column.places[: len(column.places) - column.flagged])]
    seen = ~table.held
    cells = table.client * len(table.contexts) + table.context
    inside, label = _within(x[seen], cells[seen]), _within(target[seen, None], cells[seen])
    small = 1e-6 * len(inside) * torch.eye(x.shape[1], dtype=x.dtype)
    return (x @ torch.linalg.solve(inside.T @ inside + small, inside.T @ label))[:, 0]


def _within(x: Tensor, cells: Tensor) -> Tensor:
    """x less the mean of its cell."""
    numbers, place = cells.unique(return_inverse=True)
    counts = torch.bincount(place, minlength=len(numbers)).double()[:, None]
    means = torch.zeros(len(numbers), x.shape[1], dtype=x.dtype).index_add_(0, place, x) / counts
    return x - means[place]


def _cells(table: Table, column: AuditColumn, target: Tensor, usable: Tensor) -> tuple[list[_Cell], float]:
    """Slopes on the label in every context of every site, and the variance that they leave."""
    x, left, rows = reading_of(table, column, target), 0.0, 0
    cells = []
    for client in range(len(table.clients)):
        for context in range(len(table.contexts)):
            mine = (table.client == client) & (table.context == context) & usable
            count = int(mine.sum())
            if count < LEAST_SAMPLES:
                continue
            apart, values = target[mine] - target[mine].mean(), x[mine] - x[mine].mean()
            weight = float(apart.square().sum())
            if weight < 1e-9:
                continue
            slope = float(apart @ values) / weight
            held = bool(table.held[mine][0])
            if not held:
                left += float((values - slope * apart).square().sum())
                rows += count - 2
            cells.append(_Cell(client, context, held, count, slope, weight))
    return cells, left / max(rows, 1)


def _strength_of(found: tuple[list[_Cell], float]) -> float:
    cells, noise = found
    return abs(_relation("", [c for c in cells if not c.held], math.sqrt(noise) or 1.0).strength or 0.0)


def _relation(where: str, cells: list[_Cell], scale: float) -> Relation:
    weight, rows = sum(cell.weight for cell in cells), sum(cell.rows for cell in cells)
    if not cells:
        return Relation(where, rows, None)
    slope = sum(cell.weight * cell.slope for cell in cells) / weight
    held = all(cell.held for cell in cells)
    return Relation(where, rows, slope / scale, 1 / math.sqrt(weight), held)


def _contexts_chance(contexts: list[Relation], seen: list[_Cell], scale: float) -> float:
    """Contexts may differ alike at all sites, or at each site in its own way: the less likely of the two."""
    by_site = [[_relation("", [c], scale) for c in seen if c.client == k] for k in {c.client for c in seen}]
    return min(1.0, 2 * min(_differ([[r for r in contexts if not r.held_out]]), _differ(by_site)))


def _differ(groups: list[list[Relation]]) -> float:
    """The chance of such differences within the groups (Cochran's Q)."""
    statistic, freedom = 0.0, 0
    for relations in groups:
        known = [(r.strength, r.error**-2) for r in relations if r.strength is not None]
        if len(known) > 1:
            mean = sum(w * s for s, w in known) / sum(w for _, w in known)
            statistic += sum(w * (s - mean) ** 2 for s, w in known)
            freedom += len(known) - 1
    return chance(statistic, freedom)
