"""From a table's columns to what a model sees: numbers with gaps, and categories, become numbers without gaps.

A number that was declared to stand for a missing value is one. A missing number becomes the median of the training
rows, with a 0/1 column that says so where training rows had gaps.
A category becomes one 0/1 column per level. Levels that are rare in training share the column "other"; a level that
was never seen counts as "other", and has 0 in every column where there is none. All of this is fitted on training rows
and is part of the model: whoever predicts, here, from an exported file or at a site, calls `encode`.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.naming import name_of

LEAST_ROWS = 8  # a level is named if one client has so many training rows of it: fewer tell of single people


@dataclass(frozen=True)
class Encoding:
    """What becomes of one column. Of a category, a raw value is a code: any number that is no code is another level.

    >>> cp = Encoding("cp", levels=("low", "high"), codes=(0.0, 1.0), other=True)
    >>> cp.features
    ('cp=low', 'cp=high', 'cp=other')
    >>> age = Encoding("age", median=54.0, flagged=True)
    >>> encode(torch.tensor([[60.0, 1.0], [math.nan, 7.0]]), (age, cp)).tolist()
    [[60.0, 0.0, 0.0, 1.0, 0.0], [54.0, 1.0, 0.0, 0.0, 1.0]]
    """

    name: str
    median: float = 0.0  # of a number: what a missing one becomes
    flagged: bool = False  # whether a 0/1 column tells where the value is missing
    category: bool = False
    levels: tuple[str, ...] = ()  # of a category: those with a column of their own,
    codes: tuple[float, ...] = ()  # and what stands for them in raw inputs
    other: bool = False  # whether there is a column for all other levels
    missing_values: tuple[float, ...] = ()  # raw numbers that stand for a missing value

    def __post_init__(self) -> None:
        if self.levels and not self.category:
            object.__setattr__(self, "category", True)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that it becomes."""
        parts = [f"{self.name}={level}" for level in self.levels] if self.category else [self.name]
        parts += [f"{self.name}=other"] if self.other else []
        return (*parts, *([f"{self.name} missing"] if self.flagged else []))

    @property
    def unseen(self) -> float:
        """A number that is no code."""
        return -1.0 if not self.codes or min(self.codes) >= 0 else min(self.codes) - 1

    @property
    def plain(self) -> bool:
        """A number that no training row lacked."""
        return not self.category and not self.flagged and not self.missing_values

    def code_of(self, level: str) -> float:
        """NaN of a level that stands for a missing value."""
        if level in map(name_of, self.missing_values):
            return math.nan
        return self.codes[self.levels.index(level)] if level in self.levels else self.unseen

    def as_fields(self) -> dict[str, Any]:
        """As plain values; `read_encodings` is the inverse."""
        return dataclasses.asdict(self)


def gap_columns(encodings: Sequence[Encoding]) -> dict[int, int]:
    """The place of each 0/1 column that tells where a number is missing, and the place of that number.

    >>> gap_columns([Encoding("sex", levels=("f", "m"), codes=(0.0, 1.0), flagged=True), Encoding("age", flagged=True)])
    {4: 3}
    """
    found, first = {}, 0
    for encoding in encodings:
        if encoding.flagged and not encoding.category:
            found[first + 1] = first
        first += len(encoding.features)
    return found


def read_encodings(fields: Sequence[dict[str, Any]]) -> tuple[Encoding, ...]:
    """Raises TypeError, ValueError or KeyError where they are none."""
    made = []
    for field in fields:
        numbers = {key: tuple(map(float, field.get(key, ()))) for key in ("codes", "missing_values")}
        lists = {"levels": tuple(map(str, field["levels"])), **numbers}
        made.append(Encoding(**{**field, **lists}))
    return tuple(made)


def feature_names(encodings: Sequence[Encoding]) -> tuple[str, ...]:
    return tuple(name for encoding in encodings for name in encoding.features)


def unread(encodings: Sequence[Encoding], lens: Sequence[Sequence[float]]) -> frozenset[str]:
    """Columns of which a lens (`models.lens`, its rows) leaves nothing: what is to be predicted may do without them.

    >>> unread([Encoding("age"), Encoding("sex", levels=("f", "m"), codes=(0.0, 1.0))], [(1, 0, 0), (0, 0, 0)])
    frozenset({'sex'})
    """
    read = [any(row[place] for row in [*lens[:1], *lens[2:]]) for place in range(len(lens[0]))] if lens else []
    found, first = [], 0
    for encoding in encodings:
        last = first + len(encoding.features)
        if lens and not any(read[first:last]):
            found.append(encoding.name)
        first = last
    return frozenset(found)


def encode(raw: Tensor, encodings: Sequence[Encoding]) -> Tensor:
    """[n, columns] raw values, NaN where missing -> [n, features] without gaps, in the same precision."""
    if all(encoding.plain for encoding in encodings):  # as most tables are: one step for all columns
        return torch.where(raw.isnan(), raw.new_tensor([encoding.median for encoding in encodings]), raw)
    parts = [_encode_one(raw[:, place], encoding) for place, encoding in enumerate(encodings)]
    return torch.cat(parts, 1)


def _encode_one(raw: Tensor, encoding: Encoding) -> Tensor:
    """[n] -> [n, features of this column]"""
    if encoding.missing_values:  # compared in float32, as codes are
        stand_ins = torch.tensor(encoding.missing_values, dtype=torch.float32, device=raw.device)
        raw = torch.where((raw.float()[:, None] == stand_ins[None]).any(1), torch.nan, raw)
    missing = raw.isnan()
    flag = [missing[:, None].to(raw.dtype)] if encoding.flagged else []
    if not encoding.category:
        return torch.cat([torch.where(missing, encoding.median, raw)[:, None], *flag], 1)
    # Codes are compared in float32: that is what exported models are given.
    own = raw.float()[:, None] == torch.tensor(encoding.codes, dtype=torch.float32, device=raw.device)[None]
    parts = [own.to(raw.dtype)]
    if encoding.other:
        known = own.any(1) | missing if encoding.flagged else own.any(1)
        parts.append((~known)[:, None].to(raw.dtype))
    return torch.cat([*parts, *flag], 1)


def codes_for(levels: Sequence[str], numbers: Sequence[float | None]) -> tuple[float, ...]:
    """What stands for each level: the number that it is, where all are numbers, else its place."""
    if levels and all(number is not None and math.isfinite(number) for number in numbers):
        return tuple(float(number) for number in numbers if number is not None)
    return tuple(float(place) for place in range(len(levels)))
