"""What is fitted on training rows before a model is: medians, levels of categories, means and scales."""

import dataclasses
from typing import Any, Protocol

import torch
from torch import Tensor

from perinvfl.data.encoding import LEAST_ROWS, Encoding, codes_for, encode, feature_names
from perinvfl.data.federation import Schema
from perinvfl.data.own.rows import Rows, number_of
from perinvfl.errors import UserError

LEAST_SCALE = 0.25  # of 0/1 columns


class Asked(Protocol):
    """The settings that decide about it."""

    @property
    def standardise(self) -> bool: ...
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def scale(self) -> tuple[float, ...]: ...
    @property
    def label_mean(self) -> float: ...
    @property
    def label_scale(self) -> float: ...


def fit_rows(rows: Rows, training: Tensor, asked: Asked) -> tuple[Rows, Schema, dict[str, Any]]:
    """Rows as a model sees them, what was fitted on the training rows [n] of all clients together, and what was
    imputed, encoded or left aside, for the record. Tables are encoded and standardised, other x is left as it is."""
    schema, counts = Schema(features=rows.features), dict[str, Any]()
    if rows.x.ndim == 2:
        encodings = fit_encodings(rows, training)
        counts = count_encoded(rows, encodings)
        names = feature_names(encodings)
        rows = dataclasses.replace(rows, x=encode(recode(rows, encodings), encodings), features=names, levels=())
        schema = Schema(features=names, encodings=encodings)
    if asked.standardise:
        rows, schema = _standardised(rows, schema, training, asked)
    return rows, schema, counts


def encoded_rows(rows: Rows) -> Rows:
    """A table as a model would see it that trains on all of these rows, in the columns' own units."""
    everything = torch.ones(len(rows.y), dtype=torch.bool)
    there = ~rows.x.isnan().all(0)  # a column without a value says nothing
    kept = [place for place, some in enumerate(there.tolist()) if some]
    rows = dataclasses.replace(
        rows,
        x=rows.x[:, kept],
        features=tuple(rows.features[place] for place in kept),
        levels=tuple(rows.levels_of(place) for place in kept),
    )
    encodings = fit_encodings(rows, everything)
    x = encode(recode(rows, encodings), encodings)
    return dataclasses.replace(rows, x=x, features=feature_names(encodings), levels=())


def fit_encodings(rows: Rows, training: Tensor) -> tuple[Encoding, ...]:
    made = []
    for column, name in enumerate(rows.features):
        values = rows.x[training, column]
        there = ~values.isnan()
        if not bool(there.any()):
            raise UserError(f'Column "{name}" has no value in any training row; name it in ignore.')
        flagged = not bool(there.all())
        levels = rows.levels_of(column)
        if not levels:
            made.append(Encoding(name, median=_median(values[there]), flagged=flagged))
            continue
        places = rows.client[training][there] * len(levels) + values[there].long()
        each = torch.bincount(places, minlength=len(rows.clients) * len(levels)).view(-1, len(levels))
        named = each.amax(0) >= LEAST_ROWS
        kept = tuple(level for level, keep in zip(levels, named.tolist(), strict=True) if keep)
        other = bool(each[:, ~named].any())
        made.append(category(name, kept, other, flagged))
    return tuple(made)


def _median(values: Tensor) -> float:
    """The middle one, or half-way between the two in the middle."""
    ordered = values.double().sort().values
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def category(name: str, levels: tuple[str, ...], other: bool, flagged: bool) -> Encoding:
    codes = codes_for(levels, [number_of(level) for level in levels])
    return Encoding(name, flagged=flagged, category=True, levels=levels, codes=codes, other=other)


def recode(rows: Rows, encodings: tuple[Encoding, ...]) -> Tensor:
    """[n, columns] as `encode` takes them: the place of a level becomes its code."""
    if not any(encoding.category for encoding in encodings):
        return rows.x
    columns = []
    for place, encoding in enumerate(encodings):
        values, levels = rows.x[:, place], rows.levels_of(place)
        if encoding.category and levels:
            codes = torch.tensor([encoding.code_of(level) for level in levels], dtype=torch.float64)
            missing = values.isnan()
            values = torch.where(missing, torch.nan, codes[torch.where(missing, 0, values).long()])
        columns.append(values)
    return torch.stack(columns, 1)


def count_encoded(rows: Rows, encodings: tuple[Encoding, ...]) -> dict[str, Any]:
    """Of all rows that are used: values that were missing, levels by column, rows of other levels. {}: nothing was."""
    missing = rows.x.isnan().sum(0).tolist()
    raw = recode(rows, encodings)
    other = {}
    for place, encoding in enumerate(encodings):
        if encoding.category:
            known = torch.isin(raw[:, place], torch.tensor(encoding.codes, dtype=torch.float64)) | raw[:, place].isnan()
            other[encoding.name] = int((~known).sum())
    counts = {
        "missing": {name: count for name, count in zip(rows.features, missing, strict=True) if count},
        "medians": {e.name: e.median for e, count in zip(encodings, missing, strict=True) if count and not e.category},
        "levels": {encoding.name: list(encoding.levels) for encoding in encodings if encoding.category},
        "other": {name: count for name, count in other.items() if count},
        "excluded": rows.excluded,
    }
    found = {key: value for key, value in counts.items() if value}
    return {"rows": len(rows.y), **found} if found else {}


def _standardised(rows: Rows, schema: Schema, training: Tensor, asked: Asked) -> tuple[Rows, Schema]:
    """By the training rows of all clients together; only rows of plain columns, and the label of a regression."""
    if rows.x.ndim == 2:
        mean, scale = _statistics(rows.x[training].double(), indicators(schema.encodings), asked)
        rows = dataclasses.replace(rows, x=((rows.x.double() - mean) / scale).float())
        schema = dataclasses.replace(schema, mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))
    if rows.task == "regression":
        label_mean, label_scale = asked.label_mean, asked.label_scale
        if not label_scale:
            label_mean, label_scale = float(rows.y[training].mean()), float(rows.y[training].std(correction=0)) or 1.0
        rows = dataclasses.replace(rows, y=(rows.y - label_mean) / label_scale)
        schema = dataclasses.replace(schema, label_mean=label_mean, label_scale=label_scale)
    return rows, schema


def _statistics(used: Tensor, indicator: Tensor, asked: Asked) -> tuple[Tensor, Tensor]:
    """Mean and scale of each column: those given, or those of the rows [n, columns]."""
    if asked.mean:
        if len(asked.mean) != used.shape[1]:
            raise UserError(f"data.mean has {len(asked.mean)} entries for {used.shape[1]} features.")
        return torch.tensor(asked.mean, dtype=torch.float64), torch.tensor(asked.scale, dtype=torch.float64)
    return used.mean(0), scale_of(used.mean(0), used.std(0, correction=0), indicator)


def scale_of(mean: Tensor, deviation: Tensor, indicator: Tensor) -> Tensor:
    """What columns are divided by: 1 for a constant one; the rare 1 of a 0/1 column that was made must not be huge."""
    scale = torch.where(deviation > 1e-12 * mean.abs().clamp(min=1e-12), deviation, 1.0)
    return torch.where(indicator, scale.clamp(min=LEAST_SCALE), scale)


def indicators(encodings: tuple[Encoding, ...]) -> Tensor:
    """[features] bool: 0/1 columns that stand for a level or a missing value."""
    return torch.tensor([name != one.name for one in encodings for name in one.features])
