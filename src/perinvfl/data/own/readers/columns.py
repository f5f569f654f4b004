"""What one column holds: numbers or names, and the faults of its cells."""

import math

import torch
from torch import Tensor

from perinvfl.core.naming import name_of
from perinvfl.data.own.rows import MISSING, NAMELESS, Fault, number_of

ALL = "all"  # the client or context of data that name none

Column = list[str] | Tensor  # text as it stands in the file, or numbers without a gap
Wrong = list[tuple[list[int], Fault]]  # the rows that a fault spoils


def numbers_in(name: str, column: Column, places: list[str], skip: set[int]) -> tuple[Tensor, Wrong]:
    """[n] float64; a column of text is one fault, a cell here and there one each."""
    if isinstance(column, Tensor):
        bad = (~torch.isfinite(column.float())).nonzero().flatten().tolist()
        wrong: Wrong = [([i], Fault(places[i], name, f"{float(column[i])} is not a finite number")) for i in bad]
        return column.nan_to_num(0.0, 0.0, 0.0), wrong
    values = [number_of(cell) for cell in column]
    bad = [i for i, value in enumerate(values) if value is None and i not in skip]
    bad += [i for i, value in enumerate(values) if value is not None and abs(value) > 3e38]  # beyond float32
    texts = [i for i in bad if column[i].strip().lower() not in MISSING]
    if len(texts) > max(1, (len(column) - len(skip)) // 2):
        problem = f'holds text ("{column[texts[0]]}" in {places[texts[0]]}) where features must be numbers; '
        return torch.zeros(len(column), dtype=torch.float64), [
            ([], Fault("", name, problem + "name it in ignore, or turn it into numbers"))
        ]
    wrong = [([i], Fault(places[i], name, _what(column[i]))) for i in sorted(bad)]
    return torch.tensor([0.0 if v is None else v for v in values], dtype=torch.float64), wrong


def names_in(role: str, name: str, column: Column, places: list[str], skip: set[int]) -> tuple[list[str], Wrong]:
    names = [name_of(value) for value in (column.tolist() if isinstance(column, Tensor) else column)]
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
