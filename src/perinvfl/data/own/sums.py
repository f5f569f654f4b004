"""Medians, levels, means and scales of tables that nobody may see whole: from sums over clients of whole numbers.

1. A client *offers* its columns: name, number or category, and the levels of which it has `LEAST_ROWS` training rows.
2. *counts*: missing values, rows by level, and a histogram of each number over powers of two. It gives bounds.
3. *moments*: within the bounds, a finer histogram, and the sums of the values and their squares, in whole steps.

What a client sends tells of no single row: every count is 0 or at least `LEAST_ROWS`, sums are over at least as many
rows, and values beyond the bounds count as the bounds. Sums are of whole numbers, so the order of adding, a mean taken
in between or secure aggregation change nothing. One machine and sites across machines call the same functions.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.naming import shortened
from perinvfl.data.encoding import LEAST_ROWS, Encoding
from perinvfl.data.own.fitted import Fitted, category, indicators, scale_of, with_missing_values
from perinvfl.data.own.rows import Rows, in_order
from perinvfl.errors import UserError

SMALLEST, LARGEST = -40, 128  # powers of two between which the size of a number may lie; a smaller one counts as 0
POWERS = LARGEST - SMALLEST
CELLS = 256  # of the finer histogram
STEPS = 2**14  # into which the bounds are divided, for sums
LABEL = ""  # the name of the label of a regression, which is standardised as a column is


@dataclass(frozen=True)
class Offer:
    """What is told of a column before anything is counted."""

    name: str
    kind: str  # "number", "category" or, where there is no value, "empty"
    levels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What is to be summed: columns and, once they are known, bounds of the numbers."""

    columns: tuple[Offer, ...]
    bounds: tuple[tuple[float, float], ...] = ()  # by column; (0, 0) of a category

    @property
    def size(self) -> int:
        """How many numbers a client sends."""
        return sum(map(self._size, self.columns))

    def _size(self, column: Offer) -> int:
        if self.bounds:
            return 3 + CELLS if column.kind == "number" else 0
        return 1 + (2 * POWERS + 1 if column.kind == "number" else 1 + len(column.levels))

    def parts(self, sums: Tensor) -> list[list[int]]:
        return [part.tolist() for part in sums.split([self._size(column) for column in self.columns])]

    def as_fields(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def read_plan(fields: dict[str, Any]) -> Plan:
    return Plan(read_offers(fields["columns"]), tuple((float(lo), float(hi)) for lo, hi in fields["bounds"]))


def read_offers(fields: Sequence[dict[str, Any]]) -> tuple[Offer, ...]:
    """Raises TypeError, ValueError or KeyError where they are none."""
    made = tuple(Offer(str(one["name"]), str(one["kind"]), tuple(map(str, one["levels"]))) for one in fields)
    if any(one.kind not in ("number", "category", "empty") for one in made):
        raise ValueError("a column of no known kind")
    return made


# What a client does -------------------------------------------------------------------------------------------------


def offer(rows: Rows) -> tuple[Offer, ...]:
    """Of one client's training rows."""
    offers = []
    for place, name in enumerate(rows.features):
        values, levels = rows.x[:, place], rows.levels_of(place)
        there = values[~values.isnan()]
        if levels:
            counts = torch.bincount(there.long(), minlength=len(levels)).tolist()
            named = tuple(level for level, count in zip(levels, counts, strict=True) if count >= LEAST_ROWS)
            offers.append(Offer(name, "category", named))
        else:
            offers.append(Offer(name, "number" if len(there) else "empty"))
    return (*offers, Offer(LABEL, "number")) if rows.task == "regression" else tuple(offers)


def client_sums(rows: Rows, plan: Plan) -> Tensor:
    """[plan.size] int64, of one client's training rows."""
    parts = []
    for place, column in enumerate(plan.columns):
        values = rows.y if column.name == LABEL else values_of(rows, column)
        missing = values.isnan()
        if plan.bounds:
            parts.append(_moments(values[~missing], plan.bounds[place]) if column.kind == "number" else [])
        elif column.kind == "number":
            parts.append([_told(int(missing.sum())), *_kept(_by_power(values[~missing]))])
        else:
            counts = torch.bincount(values[~missing].long(), minlength=len(column.levels) + 1).tolist()
            parts.append([_told(int(missing.sum())), *map(_told, counts)])
    return torch.tensor([number for part in parts for number in part], dtype=torch.int64)


def values_of(rows: Rows, column: Offer) -> Tensor:
    """[n] a column by its name: numbers, or the place of a level among the agreed ones; their number for all others."""
    place = rows.features.index(column.name)
    values, levels = rows.x[:, place].double(), rows.levels_of(place)
    if column.kind != "category" or not levels:
        return values
    codes = [column.levels.index(level) if level in column.levels else len(column.levels) for level in levels]
    missing = values.isnan()
    return torch.where(missing, math.nan, torch.tensor(codes).double()[torch.where(missing, 0, values).long()])


def _told(count: int) -> int:
    """A count of few rows is not told."""
    return count if count >= LEAST_ROWS else 0


def _by_power(values: Tensor) -> list[int]:
    """How many values lie between which powers of two: negative ones, from the largest size, 0, and positive ones."""
    power = values.abs().clamp(min=2.0**-60).frexp().exponent.long() - 1  # 2^power ≤ |value| < 2^(power + 1)
    cell = (power - SMALLEST).clamp(max=POWERS - 1)
    signed = torch.where(values > 0, POWERS + 1 + cell, POWERS - 1 - cell)
    place = torch.where((power < SMALLEST) | (values == 0), POWERS, signed)
    return torch.bincount(place, minlength=2 * POWERS + 1).tolist()


def _edges(cell: int) -> tuple[float, float]:
    if cell == POWERS:
        return 0.0, 0.0
    if cell > POWERS:
        return 2.0 ** (cell - POWERS - 1 + SMALLEST), 2.0 ** (cell - POWERS + SMALLEST)
    low, high = _edges(2 * POWERS - cell)
    return -high, -low


def _kept(counts: list[int]) -> list[int]:
    """The same number of rows in cells of at least LEAST_ROWS: neighbours with fewer share the cell in their middle."""
    made, group, rows, last = [0] * len(counts), list[int](), 0, -1
    for cell, count in enumerate(counts):
        group += [cell] * count if count < LEAST_ROWS else [cell]  # of a full cell its place is enough
        rows += count
        if rows >= LEAST_ROWS:
            last = cell if count >= LEAST_ROWS else group[len(group) // 2]
            made[last] += rows
            group, rows = [], 0
    if last >= 0:
        made[last] += rows
    return made


def _moments(values: Tensor, bounds: tuple[float, float]) -> list[int]:
    """Rows, the sum of steps and of their squares, and the finer histogram."""
    low, high = bounds
    if len(values) < LEAST_ROWS:
        return [0] * (3 + CELLS)
    share = (values.clamp(low, high) - low) / (high - low) if high > low else torch.zeros_like(values)
    steps = (share * STEPS).round().long()
    cells = torch.bincount((steps * CELLS // STEPS).clamp(max=CELLS - 1), minlength=CELLS).tolist()
    return [len(steps), int(steps.sum()), int(steps.square().sum()), *_kept(cells)]


# What follows from the sums -----------------------------------------------------------------------------------------


def agree_columns(offers: Sequence[tuple[Offer, ...]], clients: Sequence[str]) -> Plan:
    """The columns of all clients as one: a level that one of them names has a column at each."""
    names = [one.name for one in offers[0]]
    for client, own in zip(clients, offers, strict=True):
        if sorted(one.name for one in own) != sorted(names):
            odd = sorted({one.name for one in own} ^ set(names))
            raise UserError(
                f'The tables of {clients[0]} and {client} differ: only one of them has a column "{shortened(odd[0])}".'
            )
    columns = []
    for name in names:
        same = [next(one for one in own if one.name == name) for own in offers]
        kinds = {one.kind: client for one, client in zip(same, clients, strict=True) if one.kind != "empty"}
        if len(kinds) > 1:
            raise UserError(
                f'Column "{name}" holds numbers at {kinds["number"]} and text at {kinds["category"]}; name it in '
                "data.categories or in data.ignore."
            )
        if not kinds:
            raise UserError(f'Column "{name}" has no value in any training row; name it in ignore.')
        columns.append(Offer(name, next(iter(kinds)), in_order(level for one in same for level in one.levels)))
    return Plan(tuple(columns))


def with_bounds(plan: Plan, counts: Tensor) -> Plan:
    """From the first sums: between which bounds values count."""
    bounds = []
    for column, part in zip(plan.columns, plan.parts(counts), strict=True):
        cells = [cell for cell, count in enumerate(part[1:]) if count] if column.kind == "number" else []
        if column.kind == "number" and not cells:
            what = f'Column "{column.name}"' if column.name != LABEL else "The label"
            raise UserError(f"{what} has {LEAST_ROWS} training values at no client, too few to sum; name it in ignore.")
        bounds.append((_edges(cells[0])[0], _edges(cells[-1])[1]) if cells else (0.0, 0.0))
    return Plan(plan.columns, tuple(bounds))


def fit_sums(plan: Plan, counts: Tensor, moments: Tensor) -> tuple[Fitted, dict[str, Any]]:
    """What is fitted, and what of it is counted for the record; `plan` has bounds."""
    encodings, means, deviations, label = list[Encoding](), list[float](), list[float](), (0.0, 1.0)
    record: dict[str, Any] = {"rows": 0, "missing": {}, "medians": {}, "levels": {}, "other": {}}
    counted = Plan(plan.columns).parts(counts)
    for column, bounds, count, moment in zip(plan.columns, plan.bounds, counted, plan.parts(moments), strict=True):
        missing = count[0]
        if column.kind == "number":
            rows, mean, deviation, median = _moments_of(moment, missing, bounds)
            if column.name == LABEL:
                label = (mean, deviation or 1.0)
                continue
            encodings.append(Encoding(column.name, median=median, flagged=missing > 0))
            means, deviations = [*means, mean], [*deviations, deviation]
            record["medians"] |= {column.name: median} if missing else {}
        else:
            *levels, other = count[1:]
            rows = sum(count)
            encodings.append(category(column.name, column.levels, other > 0, missing > 0))
            shares = [share / max(rows, 1) for share in (*levels, *([other] if other else []))]
            means, deviations = [*means, *shares], [*deviations, *((p * (1 - p)) ** 0.5 for p in shares)]
            record["levels"][column.name] = list(column.levels)
            record["other"] |= {column.name: other} if other else {}
        if missing:
            share = missing / rows
            means, deviations = [*means, share], [*deviations, (share * (1 - share)) ** 0.5]
            record["missing"][column.name] = missing
        record["rows"] = max(record["rows"], rows)
    made = tuple(encodings)
    centre = torch.tensor(means, dtype=torch.float64)
    scale = scale_of(centre, torch.tensor(deviations, dtype=torch.float64), indicators(made))
    found = {key: value for key, value in record.items() if value}
    return Fitted(made, tuple(means), tuple(scale.tolist()), *label), found if len(found) > 1 else {}


def _moments_of(moment: list[int], missing: int, bounds: tuple[float, float]) -> tuple[int, float, float, float]:
    """Rows, mean and deviation of a column whose gaps are filled with its median, and the median."""
    rows, steps, squares, *cells = moment
    low, step = bounds[0], (bounds[1] - bounds[0]) / STEPS
    reached = list(accumulate(cells))
    cell = next(place for place, below in enumerate(reached) if 2 * below >= reached[-1])
    middle = cell * STEPS // CELLS  # of the cell its lower edge, which of 0 and 1 is 0 or 1
    rows, steps, squares = rows + missing, steps + missing * middle, squares + missing * middle**2
    mean = steps / max(rows, 1)
    variance = max(squares * rows - steps**2, 0) / max(rows, 1) ** 2  # of whole numbers, so nothing is lost
    return rows, low + step * mean, step * variance**0.5, low + step * middle


def fit_clients(rows: Rows) -> tuple[Fitted, dict[str, Any]]:
    """On one machine what sites across machines would sum, from the training rows of all clients."""
    each = [rows.take(rows.client == client) for client in range(len(rows.clients))]
    plan = agree_columns([offer(own) for own in each], rows.clients)
    counts = torch.stack([client_sums(own, plan) for own in each]).sum(0)
    plan = with_bounds(plan, counts)
    fitted, record = fit_sums(plan, counts, torch.stack([client_sums(own, plan) for own in each]).sum(0))
    stand_ins = {name: rows.missing_values_of(place) for place, name in enumerate(rows.features)}
    return with_missing_values(fitted, {name: values for name, values in stand_ins.items() if values}), record
