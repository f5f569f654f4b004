"""Fit, on training rows, what comes before a model: medians, levels of categories, means and scales."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from perinvfl.core.mapped import is_mapped
from perinvfl.data.encoding import LEAST_ROWS, Encoding, encode, feature_names
from perinvfl.data.federation import Schema
from perinvfl.data.own.fitted import Fitted, apply_in_blocks, blocks_of, category, indicators, recode, scale_of
from perinvfl.data.own.rows import Rows
from perinvfl.data.own.sums import fit_clients
from perinvfl.errors import UserError

Statistics = Literal["exact", "summed"]


class Asked(Protocol):
    """The settings that decide about it."""

    @property
    def statistics(self) -> Statistics: ...
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


def fit_rows(
    rows: Rows, training: Tensor, asked: Asked, given: Fitted | None = None
) -> tuple[Rows, Schema, dict[str, Any]]:
    """Rows as a model sees them, what was fitted on the training rows [n] of all clients together, and what was
    imputed, encoded or left aside, for the record. Tables are encoded and standardised, other x is left as it is.

    given: what was fitted elsewhere.
    """
    table = rows.x.ndim == 2
    if given is not None:
        fitted = given
    elif table and asked.statistics == "summed" and not asked.mean:
        fitted = fit_clients(rows.take(training))[0]
    else:
        fitted = _fit(rows, training, asked)
    if not asked.standardise:
        fitted = Fitted(fitted.encodings)
    elif rows.task == "regression" and asked.label_scale:
        fitted = dataclasses.replace(fitted, label_mean=asked.label_mean, label_scale=asked.label_scale)
    counts = count_encoded(rows, fitted.encodings) if table else {}
    return apply_in_blocks(rows, fitted), fitted.schema(rows), counts


def _fit(rows: Rows, training: Tensor, asked: Asked) -> Fitted:
    fitted = Fitted()
    if rows.x.ndim == 2:
        encodings = fit_encodings(rows, training)
        mean, scale = _statistics(rows, training, encodings, asked)
        fitted = Fitted(encodings, tuple(mean.tolist()), tuple(scale.tolist()))
    if rows.task == "regression":
        label_mean, label_scale = float(rows.y[training].mean()), float(rows.y[training].std(correction=0)) or 1.0
        fitted = dataclasses.replace(fitted, label_mean=label_mean, label_scale=label_scale)
    return fitted


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
        missing_values=tuple(rows.missing_values_of(place) for place in kept),
    )
    encodings = fit_encodings(rows, everything)
    x = encode(recode(rows, encodings), encodings)
    return dataclasses.replace(rows, x=x, features=feature_names(encodings), levels=(), missing_values=())


def fit_encodings(rows: Rows, training: Tensor) -> tuple[Encoding, ...]:
    made = []
    for column, name in enumerate(rows.features):
        values = rows.x[training, column]
        there = ~values.isnan()
        if not bool(there.any()):
            raise UserError(f'Column "{name}" has no value in any training row; name it in ignore.')
        flagged = not bool(there.all())
        levels, stand_ins = rows.levels_of(column), rows.missing_values_of(column)
        if not levels:
            made.append(Encoding(name, _median(values[there]), flagged, missing_values=stand_ins))
            continue
        places = rows.client[training][there] * len(levels) + values[there].long()
        each = torch.bincount(places, minlength=len(rows.clients) * len(levels)).view(-1, len(levels))
        named = each.amax(0) >= LEAST_ROWS
        kept = tuple(level for level, keep in zip(levels, named.tolist(), strict=True) if keep)
        made.append(category(name, kept, bool(each[:, ~named].any()), flagged, stand_ins))
    return tuple(made)


def _median(values: Tensor) -> float:
    """The middle one, or half-way between the two in the middle."""
    ordered = values.double().sort().values
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _statistics(rows: Rows, training: Tensor, encodings: tuple[Encoding, ...], asked: Asked) -> tuple[Tensor, Tensor]:
    """Mean and scale of each column: those given, or those of the training rows."""
    if asked.mean:
        if len(asked.mean) != len(feature_names(encodings)):
            raise UserError(f"data.mean has {len(asked.mean)} entries for {len(feature_names(encodings))} features.")
        return torch.tensor(asked.mean, dtype=torch.float64), torch.tensor(asked.scale, dtype=torch.float64)

    def blocks() -> Iterator[Tensor]:  # [n, features]
        place = 0
        for block in blocks_of(rows):
            chosen = training[place : place + len(block.y)]
            place += len(block.y)
            yield encode(recode(block, encodings)[chosen], encodings).double()

    if not is_mapped(rows.x):
        (used,) = blocks()
        mean, deviation = used.mean(0), used.std(0, correction=0)
    else:
        count = int(training.sum())
        mean = torch.stack([used.sum(0) for used in blocks()]).sum(0) / count
        deviation = (torch.stack([(used - mean).square().sum(0) for used in blocks()]).sum(0) / count).sqrt()
    return mean, scale_of(mean, deviation, indicators(encodings))


def count_encoded(rows: Rows, encodings: tuple[Encoding, ...]) -> dict[str, Any]:
    """Of all rows that are used: values that were missing, levels by column, rows of other levels. {}: nothing was."""
    gaps = torch.zeros(len(encodings), dtype=torch.int64)
    other = {encoding.name: 0 for encoding in encodings if encoding.category}
    for block in blocks_of(rows):
        raw = recode(block, encodings)
        gaps += raw.isnan().sum(0)
        for place, encoding in enumerate(encodings):
            if encoding.category:
                known = torch.isin(raw[:, place], torch.tensor(encoding.codes, dtype=raw.dtype)) | raw[:, place].isnan()
                other[encoding.name] += int((~known).sum())
    missing = dict(zip((encoding.name for encoding in encodings), gaps.tolist(), strict=True))
    counts = {
        "missing": {name: count for name, count in missing.items() if count},
        "medians": {e.name: e.median for e in encodings if missing[e.name] and not e.category},
        "levels": {encoding.name: list(encoding.levels) for encoding in encodings if encoding.category},
        "other": {name: count for name, count in other.items() if count},
        "missing_values": {e.name: list(e.missing_values) for e in encodings if e.missing_values},
        "excluded": rows.excluded,
    }
    found = {key: value for key, value in counts.items() if value}
    return {"rows": len(rows.y), **found} if found else {}
