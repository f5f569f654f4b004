"""Columns of what a program hands over: data frames of pandas, polars and pyarrow, arrays of objects, nested lists."""

import math
from typing import Any

import torch

from perinvfl.core.naming import name_of
from perinvfl.data.own.readers.columns import Column


def column_names(x: Any) -> list[str]:
    """Of a data frame; [] where it is none."""
    names = getattr(x, "column_names", None)
    names = getattr(x, "columns", None) if names is None else names
    return [] if names is None or callable(names) else [str(name) for name in names]


def select(x: Any, names: list[str]) -> Any:
    """These columns of a data frame, in this order."""
    if hasattr(x, "column_names"):
        return x.select(names)
    keys = {str(key): key for key in x.columns}  # pandas may number its columns
    return x[[keys[name] for name in names]]


def columns_of(x: Any) -> list[Column] | None:
    """Each column as numbers or as text; None where x has no columns that could be told apart."""
    names = column_names(x)
    if names:
        keys = list(getattr(x, "column_names", None) or x.columns)
        return [as_column(x[key]) for key in keys]
    if hasattr(x, "ndim"):
        return [as_column(x[:, place]) for place in range(x.shape[1])] if x.ndim == 2 else None
    rows = list(x) if isinstance(x, list | tuple) else []
    if not rows or not all(isinstance(row, list | tuple) and len(row) == len(rows[0]) for row in rows):
        return None
    return [as_column(list(column)) for column in zip(*rows, strict=True)]


def as_column(values: Any) -> Column:
    """Numbers where all are numbers or missing, else text as it would stand in a file."""
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(values, method):
            values = getattr(values, method)()
            break
    plain = [None if value is None or str(value) in ("nan", "<NA>", "NaT") else value for value in values]
    if all(value is None or isinstance(value, bool | int | float) for value in plain):
        return torch.tensor([math.nan if value is None else float(value) for value in plain], dtype=torch.float64)
    return ["" if value is None else name_of(value) for value in plain]
