"""What was fitted on training rows before a model is trained, and rows as the model then sees them."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.mapped import MappedRows, is_mapped, let_go
from perinvfl.data.encoding import Encoding, codes_for, encode, feature_names, read_encodings
from perinvfl.data.federation import Schema
from perinvfl.data.own.rows import Rows, number_of
from perinvfl.errors import UserError

BLOCK = 2**16  # rows that are looked at together
LEAST_SCALE = 0.25  # of 0/1 columns


@dataclass(frozen=True)
class Fitted:
    encodings: tuple[Encoding, ...] = ()  # of a table's columns; empty: x is no table
    mean: tuple[float, ...] = ()  # what is taken off each feature; empty: they stay as they are
    scale: tuple[float, ...] = ()  # and what the rest is divided by
    label_mean: float = 0.0  # the same for the label of a regression
    label_scale: float = 1.0

    def as_fields(self) -> dict[str, Any]:
        """As plain values; `read_fitted` is the inverse."""
        return dataclasses.asdict(self)

    def schema(self, rows: Rows) -> Schema:
        features = feature_names(self.encodings) if self.encodings else rows.features
        return Schema((), (), (), features, self.mean, self.scale, self.label_mean, self.label_scale, self.encodings)


def read_fitted(fields: dict[str, Any]) -> Fitted:
    """Raises TypeError, ValueError or KeyError where it is none."""
    lists = {key: tuple(map(float, fields[key])) for key in ("mean", "scale")}
    return Fitted(**{**fields, **lists, "encodings": read_encodings(fields["encodings"])})


def apply_fitted(rows: Rows, fitted: Fitted) -> Rows:
    """Rows as a model sees them."""
    if fitted.encodings:
        x = encode(recode(rows, fitted.encodings), fitted.encodings)
        rows = dataclasses.replace(rows, x=x, features=feature_names(fitted.encodings), levels=(), missing_values=())
    if fitted.mean:
        mean, scale = (torch.tensor(values, dtype=torch.float64) for values in (fitted.mean, fitted.scale))
        rows = dataclasses.replace(rows, x=((rows.x.double() - mean) / scale).float())
    if rows.task == "regression" and (fitted.label_mean, fitted.label_scale) != (0.0, 1.0):
        rows = dataclasses.replace(rows, y=(rows.y - fitted.label_mean) / fitted.label_scale)
    return rows


def apply_in_blocks(rows: Rows, fitted: Fitted) -> Rows:
    """As `apply_fitted`; where the rows lie in a file, so does what is made of them."""
    if not is_mapped(rows.x) or not (fitted.encodings or fitted.mean):
        return apply_fitted(rows, fitted)
    with MappedRows() as made:
        for block in blocks_of(rows):
            seen = apply_fitted(block, fitted).x.float()
            made.add(seen)
        x = made.finish(seen.shape[1:], seen.dtype)
    y = apply_fitted(dataclasses.replace(rows, x=rows.x[:1]), fitted).y
    features = feature_names(fitted.encodings) if fitted.encodings else rows.features
    return dataclasses.replace(rows, x=x, y=y, features=features, levels=(), missing_values=())


def blocks_of(rows: Rows) -> Iterator[Rows]:
    """The rows, some at a time where they lie in a file."""
    if not is_mapped(rows.x):
        yield rows
        return
    for first in range(0, len(rows.y), BLOCK):
        yield rows.take(torch.arange(first, min(first + BLOCK, len(rows.y))))
        let_go()


def recode(rows: Rows, encodings: tuple[Encoding, ...]) -> Tensor:
    """[n, columns] as `encode` takes them: the place of a level becomes its code."""
    if not any(map(bool, rows.levels)) and rows.features == tuple(encoding.name for encoding in encodings):
        return rows.x
    return torch.stack([_raw(rows, encoding) for encoding in encodings], 1)


def _raw(rows: Rows, encoding: Encoding) -> Tensor:
    if encoding.name not in rows.features:
        raise UserError(f'There is no column "{encoding.name}", which the model needs.')
    place = rows.features.index(encoding.name)
    values, levels = rows.x[:, place], rows.levels_of(place)
    missing = values.isnan()
    if encoding.category != bool(levels) and not bool(missing.all()):
        held, wanted = ("text", "numbers") if levels else ("numbers", "text")
        raise UserError(f'Column "{encoding.name}" holds {held} where the model takes {wanted}.')
    if not levels:
        return values
    codes = torch.tensor([encoding.code_of(level) for level in levels], dtype=torch.float64)
    return torch.where(missing, torch.nan, codes[torch.where(missing, 0, values).long()])


def category(
    name: str, levels: tuple[str, ...], other: bool, flagged: bool, missing_values: tuple[float, ...] = ()
) -> Encoding:
    codes = codes_for(levels, [number_of(level) for level in levels])
    return Encoding(name, 0.0, flagged, True, levels, codes, other, missing_values)


def with_missing_values(fitted: Fitted, values: Mapping[str, tuple[float, ...]]) -> Fitted:
    """Columns that know which numbers stand for a missing value."""
    known = (dataclasses.replace(one, missing_values=values.get(one.name, ())) for one in fitted.encodings)
    return dataclasses.replace(fitted, encodings=tuple(known))


def scale_of(mean: Tensor, deviation: Tensor, indicator: Tensor) -> Tensor:
    """What columns are divided by: 1 for a constant one; the rare 1 of a 0/1 column that was made must not be huge."""
    scale = torch.where(deviation > 1e-12 * mean.abs().clamp(min=1e-12), deviation, 1.0)
    return torch.where(indicator, scale.clamp(min=LEAST_SCALE), scale)


def indicators(encodings: tuple[Encoding, ...]) -> Tensor:
    """[features] bool: 0/1 columns that stand for a level or a missing value."""
    return torch.tensor([name != one.name for one in encodings for name in one.features])
