"""Numbers that stand for a missing value, such as a cholesterol of 0: declared by `data.missing_values`.

They become gaps as soon as rows are read, and the fitted encoding of the column knows them, so that whoever predicts
later treats them alike.
"""

import dataclasses

import torch
from torch import Tensor

from perinvfl.core.config import NumbersByName, suggest
from perinvfl.data.own.readers import Column
from perinvfl.data.own.rows import Found, number_of
from perinvfl.errors import UserError


def mark_missing(found: Found, values: NumbersByName, gaps: bool = True) -> Found:
    """What was found, with NaN where a number stands for a missing value. gaps: whether a feature may be missing."""
    if not values:
        return found
    if found.x.ndim != 2:
        raise UserError("data.missing_values is for the columns of a table; these data are none.")
    if not gaps:
        raise UserError('data.missing_values makes gaps, which data.missing = "refuse" refuses; leave one of them out.')
    x, levels = found.x.clone(), found.levels or ((),) * len(found.features)
    for name, numbers in values.items():
        if name not in found.features:
            raise UserError(f'data.missing_values names "{name}", no feature{suggest(name, list(found.features))}')
        place = found.features.index(name)
        own = levels[place]
        if own and any(number_of(level) is None for level in own):
            raise UserError(f'data.missing_values names "{name}", which holds text; leave its missing cells empty.')
        codes = [float(k) for k, level in enumerate(own) if is_one(number_of(level), numbers)] if own else numbers
        x[:, place] = torch.where(_among(x[:, place], codes), torch.nan, x[:, place])
    of_features = tuple(values.get(name, ()) for name in found.features)
    return dataclasses.replace(found, x=x, missing_values=of_features)


def without_stand_ins(column: Column, numbers: tuple[float, ...]) -> Column:
    """A column as it stands in a file, with nothing where a number stands for a missing value."""
    if not numbers:
        return column
    if isinstance(column, Tensor):
        return torch.where(_among(column, numbers), torch.nan, column.double())
    return ["" if is_one(number_of(cell), numbers) else cell for cell in column]


def is_one(value: float | None, numbers: tuple[float, ...]) -> bool:
    return value is not None and value in numbers


def _among(values: Tensor, numbers: tuple[float, ...] | list[float]) -> Tensor:
    return torch.isin(values.double(), torch.tensor(numbers, dtype=torch.float64))
