"""Columns of what a program hands over: data frames of pandas, polars and pyarrow, Hugging Face data sets, arrays of
objects, nested lists. No library is imported to recognise its types."""

import math
from collections.abc import Iterable
from typing import Any

import torch

from perinvfl.core.naming import listed, name_of
from perinvfl.data.own.readers.columns import Column
from perinvfl.data.own.readers.roles import column_roles
from perinvfl.data.own.readers.tables import Cells, found_in
from perinvfl.data.own.rows import BadData, Columns, Fault, Found
from perinvfl.errors import UserError

EXACT = 2**53  # up to here, every whole number is a float
FRAMES = {
    ("pandas", "DataFrame"): "pandas data frame",
    ("polars", "DataFrame"): "polars data frame",
    ("pyarrow", "Table"): "pyarrow table",
    ("pyarrow", "RecordBatch"): "pyarrow table",
    ("datasets", "Dataset"): "Hugging Face data set",
}
ALMOST = {
    ("polars", "LazyFrame"): "a polars LazyFrame has no rows yet: call its collect() first",
    ("datasets", "IterableDataset"): "a streamed Hugging Face data set has no rows yet: load it without streaming",
    ("datasets", "DatasetDict"): "a Hugging Face DatasetDict holds several data sets: give one of them",
}
TABLES_IN_MEMORY = "a data frame of pandas, polars or pyarrow, or a Hugging Face data set"


def frame_kind(value: Any) -> str:
    """Which kind of data frame it is, in words; empty where it is none."""
    return next((FRAMES[name] for name in _types(value) if name in FRAMES), "")


def why_no_frame(value: Any) -> str:
    """The end of a sentence about something that is none."""
    almost = next((ALMOST[name] for name in _types(value) if name in ALMOST), "")
    if almost and isinstance(value, dict):
        almost += f" ({listed(map(str, value))})"
    return almost or f"it was given something of type {type(value).__name__}"


def _types(value: Any) -> list[tuple[str, str]]:
    """Library and name of its type and of the types that this one extends."""
    return [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(value).__mro__]


def read_frame(frame: Any, columns: Columns) -> Found:
    """The rows of a data frame. Of a pandas index, levels that are named as label, client or context are columns."""
    kind = frame_kind(frame)
    if not kind:
        raise UserError(f"A table must be {TABLES_IN_MEMORY}; {why_no_frame(frame)}.")
    if kind == FRAMES["pandas", "DataFrame"]:
        wanted = [name for name in (columns.label, columns.client, columns.context) if name not in frame.columns]
        levels = [name for name in frame.index.names if name is not None and name in wanted]
        frame = frame.reset_index(level=levels) if levels else frame
    header = column_names(frame)
    roles = column_roles(kind, header, columns)
    if not len(frame):
        raise BadData(kind, [Fault("", "", "the table has no row")])
    used = [name for name in header if name in (*roles.features, roles.label, roles.client, roles.context)]
    faults = [fault for name in used if (fault := _nested(name, _column(frame, header.index(name))))]
    if faults:
        raise BadData(kind, faults)
    cells = {name: as_column(_column(frame, header.index(name))) for name in used}
    return found_in(Cells(kind, header, cells, [f"row {i + 1}" for i in range(len(frame))], []), roles)


def _column(frame: Any, place: int) -> Any:
    """By its place: names of pandas columns need not be text."""
    if hasattr(frame, "iloc"):
        return frame.iloc[:, place]
    name = column_names(frame)[place]
    if _types(frame)[0] != ("datasets", "Dataset"):
        return frame[name]
    values = frame.select_columns([name]).with_format("arrow")[:][name]
    names = getattr(frame.features[name], "names", None)  # of a ClassLabel, whose values are numbers
    return values if names is None else [names[v] if v is not None and v >= 0 else None for v in values.to_pylist()]


def _nested(name: str, values: Any) -> Fault | None:
    """Columns of lists, pictures or bytes are no features."""
    first = next((value for value in _values(values) if value is not None), None)
    if isinstance(first, str) or not isinstance(first, Iterable):
        return None
    what = f"holds values of type {type(first).__name__}, where numbers or text are meant; name it in ignore"
    return Fault("", name, what)


def _values(values: Any) -> Any:
    """Plain Python values of a column."""
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(values, method):
            return getattr(values, method)()
    return values


def column_names(x: Any) -> list[str]:
    """Of a data frame; [] where it is none."""
    names = getattr(x, "column_names", None)
    names = getattr(x, "columns", None) if names is None else names
    return [] if names is None or callable(names) else [str(name) for name in names]


def as_frame(x: Any) -> Any:
    """A Hugging Face data set as a pyarrow table, its rows in their order; anything else as it is."""
    return x.with_format("arrow")[:] if ("datasets", "Dataset") in _types(x) else x


def select(x: Any, names: list[str]) -> Any:
    """These columns of a data frame, in this order."""
    if hasattr(x, "select_columns"):  # Hugging Face, where select takes rows
        return x.select_columns(names)
    if hasattr(x, "column_names"):
        return x.select(names)
    keys = {str(key): key for key in x.columns}  # pandas may number its columns
    return x[[keys[name] for name in names]]


def columns_of(x: Any) -> list[Column] | None:
    """Each column as numbers or as text; None where x has no columns that could be told apart."""
    names = column_names(x)
    if names:
        return [as_column(_column(x, place)) for place in range(len(names))]
    if hasattr(x, "ndim"):
        return [as_column(x[:, place]) for place in range(x.shape[1])] if x.ndim == 2 else None
    rows = list(x) if isinstance(x, list | tuple) else []
    if not rows or not all(isinstance(row, list | tuple) and len(row) == len(rows[0]) for row in rows):
        return None
    return [as_column(list(column)) for column in zip(*rows, strict=True)]


def _is_exact(value: Any) -> bool:
    """A whole number that a float holds; others are ids, which as text stay apart."""
    return isinstance(value, bool | int) and -EXACT <= value <= EXACT


def as_column(values: Any) -> Column:
    """Numbers where all are numbers or missing, else text as it would stand in a file."""
    copied = {"zero_copy_only": False} if hasattr(values, "to_pylist") else {}  # pyarrow would refuse gaps
    array = values.to_numpy(**copied) if hasattr(values, "to_numpy") else values
    kind = getattr(getattr(array, "dtype", None), "kind", "")
    if kind in ("b", "f") or (kind in ("i", "u") and (not array.size or -EXACT <= array.min() <= array.max() <= EXACT)):
        return torch.tensor(array.astype("float64"))
    plain = [None if value is None or str(value) in ("nan", "<NA>", "NaT") else value for value in _values(values)]
    if all(value is None or isinstance(value, float) or _is_exact(value) for value in plain):
        return torch.tensor([math.nan if value is None else float(value) for value in plain], dtype=torch.float64)
    return ["" if value is None else name_of(value) for value in plain]
