"""What one column holds: numbers or names, and the faults of its cells."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from perinvfl.core.naming import name_of
from perinvfl.data.own.readers.decimal_commas import looks_decimal
from perinvfl.data.own.rows import IGNORE_IT, MISSING, NAMELESS, Columns, Fault, in_order, number_of

ALL = "all"  # the client or context of data that name none

MOST_LEVELS = 100  # of a category
LEAST_FOR_TEXT = 20  # rows: a text that differs in most of so many is a name or a remark, no category

Column = list[str] | Tensor  # text as it stands in the file, or numbers, NaN where missing
Wrong = list[tuple[list[int], Fault]]  # the rows that a fault spoils


class Feature(NamedTuple):
    """A column to predict from."""

    values: Tensor  # [n] float64: NaN where missing; of a category the place of the level
    levels: tuple[str, ...]  # of a category; () of a number
    wrong: Wrong


def feature_in(name: str, column: Column, places: list[str], skip: set[int], roles: Columns) -> Feature:
    """A column of numbers or, if most of it is text or it is declared one, a category."""
    if name in roles.categories or _is_text(column, skip):
        return _category(name, column, places, skip, roles)
    values, wrong = numbers_in(name, column, places, skip)
    if not roles.gaps:
        wrong += _gaps(name, column, values, places, skip)
    return Feature(values, (), wrong)


def _is_text(column: Column, skip: set[int]) -> bool:
    if isinstance(column, Tensor):
        return False
    there = [cell for i, cell in enumerate(column) if i not in skip and not is_missing(cell)]
    return 2 * sum(number_of(cell) is None for cell in there) > len(there)


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING


def numbers_in(name: str, column: Column, places: list[str], skip: set[int]) -> tuple[Tensor, Wrong]:
    """[n] float64, NaN where missing; what is neither a number nor missing is a fault."""
    if isinstance(column, Tensor):
        numbers = column.double()
        bad = numbers.float().isinf().nonzero().flatten().tolist()
        wrong: Wrong = [([i], Fault(places[i], name, f"{float(column[i])} is not a finite number")) for i in bad]
        return torch.where(numbers.float().isinf(), 0.0, numbers), wrong
    values = [number_of(cell) for cell in column]
    bad = [i for i, v in enumerate(values) if v is None and i not in skip and not is_missing(column[i])]
    bad += [i for i, value in enumerate(values) if value is not None and abs(value) > 3e38]  # beyond float32
    wrong = [([i], Fault(places[i], name, _what(column[i]))) for i in sorted(bad)]
    return torch.tensor([math.nan if v is None else v for v in values], dtype=torch.float64), wrong


def level_names(column: Column, each_number: bool = False) -> list[str]:
    """[n] the level of each row; "" where it is missing. Where all are numbers, 1 and 1.0 are one level.

    each_number: they are one level even among names.
    """
    if isinstance(column, Tensor):
        return ["" if math.isnan(value) else name_of(value) for value in column.tolist()]
    names = ["" if is_missing(cell) else cell.strip() for cell in column]
    numbers = [number_of(name) for name in names]
    if each_number or all(number is not None for name, number in zip(names, numbers, strict=True) if name):
        return [name if number is None else name_of(number) for name, number in zip(names, numbers, strict=True)]
    return names


def _category(name: str, column: Column, places: list[str], skip: set[int], roles: Columns) -> Feature:
    cells = level_names(column)
    there = [cell for i, cell in enumerate(cells) if cell and i not in skip]
    levels = in_order(there)
    unlike = name not in roles.categories and 2 * len(levels) > len(there) >= LEAST_FOR_TEXT
    wrong: Wrong = []
    if len(levels) > MOST_LEVELS or unlike:
        what = f"holds {len(levels)} different texts in {len(there)} rows"
        example = f'("{there[0]}", "{next(cell for cell in there if cell != there[0])}", ...)'
        commas = ", and looks like numbers with decimal commas" if looks_decimal(there) else ""
        wrong = [([], Fault("", name, f"{what} {example}, too many for a category{commas}{IGNORE_IT}"))]
    place = {level: float(number) for number, level in enumerate(levels)}
    values = torch.tensor([place.get(cell, math.nan) for cell in cells], dtype=torch.float64)
    if not roles.gaps:
        wrong += _gaps(name, column, values, places, skip)
    return Feature(values, levels, wrong)


def _gaps(name: str, column: Column, values: Tensor, places: list[str], skip: set[int]) -> Wrong:
    """Missing values as faults, where that is asked for."""
    gaps = [i for i in values.isnan().nonzero().flatten().tolist() if i not in skip]
    cells = ["" if isinstance(column, Tensor) else column[i] for i in gaps]
    missing = [(i, cell) for i, cell in zip(gaps, cells, strict=True) if is_missing(cell)]
    return [([i], Fault(places[i], name, _what(cell))) for i, cell in missing]


def names_of(column: Column) -> list[str]:
    return [name_of(value) for value in (column.tolist() if isinstance(column, Tensor) else column)]


def names_in(role: str, name: str, column: Column, places: list[str], skip: set[int]) -> tuple[list[str], Wrong]:
    names = names_of(column)
    missing = [i for i, text in enumerate(names) if text.lower() in NAMELESS and i not in skip]
    return names, [([i], Fault(places[i], name, f"the {role} is missing")) for i in missing]


def _what(cell: str) -> str:
    text = cell.strip()
    if text.lower() in MISSING:
        return "the value is missing" if not text else f'"{text}" stands for a missing value'
    return (
        f'"{text}" is not a finite number'
        if math.isinf(_float(text))
        else (f'"{text}" is not a number' if number_of(text) is None else f'"{text}" is too large')
    )


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
