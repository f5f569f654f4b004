"""Rows to be predicted: read as the model's columns were fitted, and without those that cannot be used."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.config import suggest
from perinvfl.core.naming import shortened
from perinvfl.data.encoding import Encoding
from perinvfl.data.own import readers
from perinvfl.data.own.readers import Column
from perinvfl.data.own.rows import BadData, Fault, number_of
from perinvfl.errors import UserError


@dataclass(frozen=True)
class Inputs:
    """What a file holds to be predicted."""

    x: Tensor  # [n, ...] raw values, NaN where missing; all rows of the file, those that cannot be used included
    names: tuple[str, ...] = ()  # what each row is called, where it has a name: an id, a photograph's file
    title: str = ""  # of those names
    unusable: tuple[tuple[int, Fault], ...] = ()  # rows that cannot be used, and why: the first fault of each
    notes: tuple[str, ...] = ()  # what a person should know of how columns were read

    @property
    def usable(self) -> list[int]:
        left = {row for row, _ in self.unusable}
        return [row for row in range(len(self.x)) if row not in left]


def read_table(
    path: Path, encodings: Sequence[Encoding], id: str = "", gaps: bool = True, unread: Collection[str] = ()
) -> Inputs:
    """The model's columns of a table, by name; others are passed over, and `id` names the rows.

    gaps: the model knows what to do with a missing value; else such a row cannot be used. unread: columns of which the
    model sees nothing, which need not be there.
    """
    wanted = [encoding.name for encoding in encodings]
    cells = readers.table_cells(path, [*wanted, id])
    missing = [name for name in wanted if name not in cells.header and name not in unread]
    if missing:
        raise UserError(
            f"{path} has no column {shortened(missing[0])}; the model takes {shortened(', '.join(wanted), 2000)}."
        )
    if id and id not in cells.header:
        raise UserError(f'{path} has no column "{id}" to be the id{suggest(id, cells.header)}')
    twice = [Fault("", name, "stands twice") for name in [*wanted, id] if cells.header.count(name) > 1]
    if twice:
        raise BadData(str(path), twice)
    unusable = dict(cells.ragged)
    made = {encoding.name: _pointed(encoding, cells) for encoding in encodings if encoding.name not in unread}
    columns = []
    for encoding in encodings:
        if encoding.name in unread:
            columns.append(torch.full((len(cells.places),), torch.nan if gaps else 0.0, dtype=torch.float64))
            continue
        pointed = made[encoding.name]
        column = cells.columns[encoding.name] if pointed is None else pointed.cells
        values, wrong = _raw(encoding, column, cells.places, set(unusable))
        columns.append(values)
        if not gaps:
            empty = values.isnan().nonzero().flatten().tolist()
            wrong += [([row], Fault(cells.places[row], encoding.name, "the value is missing")) for row in empty]
        for rows, fault in wrong:
            for row in rows:
                unusable.setdefault(row, fault)
    x = torch.stack(columns, 1).float()
    names = tuple(readers.names_of(cells.columns[id])) if id else ()
    commas = [name for name, pointed in made.items() if pointed is not None and pointed.read]
    doubts = {name: pointed.doubt for name, pointed in made.items() if pointed is not None and pointed.doubt}
    return Inputs(x, names, id, tuple(sorted(unusable.items())), readers.reading_notes(commas, doubts))


def _pointed(encoding: Encoding, cells: readers.Cells) -> readers.Pointed | None:
    """A column of text with decimal points for commas, where the model knows that it holds numbers."""
    column = cells.columns[encoding.name]
    if isinstance(column, Tensor) or not _is_numeric(encoding):
        return None
    return readers.with_points(column, cells.delimiter, number=True)


def _is_numeric(encoding: Encoding) -> bool:
    return all(number_of(level) is not None for level in encoding.levels)


def raw_inputs(x: Any, encodings: Sequence[Encoding], unread: Collection[str] = ()) -> Tensor:
    """[n, columns] from a data frame or nested lists by the names of levels, from an array of numbers by codes.

    unread: columns of which the model sees nothing, which a data frame need not have.
    """
    names = readers.column_names(x)
    there = [encoding for encoding in encodings if not names or encoding.name in names or encoding.name not in unread]
    if len(there) < len(encodings):
        known = dict(zip([encoding.name for encoding in there], raw_inputs(x, there).unbind(1), strict=True))
        nothing = torch.full((len(x),), torch.nan, dtype=torch.float64)
        return torch.stack([known.get(encoding.name, nothing) for encoding in encodings], 1)
    wanted = [encoding.name for encoding in encodings]
    missing = [name for name in wanted if names and name not in names]
    if missing:
        raise UserError(f'The column "{missing[0]}" is missing from what is to be predicted.')
    categories = any(encoding.category for encoding in encodings)
    columns = readers.table_of(readers.select(x, wanted) if names else x, text=bool(names) and categories)
    if columns is None:
        return readers.numbers_of("x", readers.select(x, wanted) if names else x)
    if len(columns) != len(encodings):
        raise UserError(f"x has {len(columns)} columns; the model takes {len(encodings)}: {', '.join(wanted)}.")
    places = [f"row {i + 1}" for i in range(len(columns[0]))]
    found = [_raw(encoding, column, places, set()) for encoding, column in zip(encodings, columns, strict=True)]
    wrong = [fault for _, faults in found for _, fault in faults]
    if wrong:
        raise BadData("x", wrong)
    return torch.stack([values for values, _ in found], 1)


def _raw(
    encoding: Encoding, column: Column, places: list[str], skip: set[int]
) -> tuple[Tensor, list[tuple[list[int], Fault]]]:
    """[n] numbers, or the codes of levels by their names."""
    if not encoding.category:
        return readers.numbers_in(encoding.name, column, places, skip)
    names = readers.level_names(column, each_number=_is_numeric(encoding))
    codes = [encoding.code_of(name) if name else torch.nan for name in names]
    return torch.tensor(codes, dtype=torch.float64), []
