"""Arrays: NumPy archives, safetensors, and what a program hands over directly."""

import math
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.memory import check_fits
from perinvfl.core.naming import name_of
from perinvfl.core.plugins import in_words
from perinvfl.data.own.readers.columns import ALL, Column, Wrong, feature_in, names_in
from perinvfl.data.own.readers.frames import columns_of
from perinvfl.data.own.readers.libraries import need
from perinvfl.data.own.rows import BadData, Columns, Fault, Found
from perinvfl.errors import UserError

ARRAYS = (".npz", ".safetensors")
DEFAULT = Columns()
LAST_CHARACTER, HALVES = 0x10FFFF, (0xD800, 0xDFFF)  # of Unicode; a half is no character


def read_arrays(path: Path) -> dict[str, Any]:
    """All arrays of a file by name: NumPy's of an .npz, tensors of a .safetensors."""
    if path.suffix.lower() == ".npz":
        numpy = need("numpy", "tables", "A NumPy archive")
        try:
            _check_archive(path, numpy)
            with numpy.load(path, allow_pickle=False) as archive:
                return {name: _with_whole_texts(name, archive[name], numpy) for name in archive.files}
        except UserError:
            raise
        except Exception as error:  # zipfile, zlib and numpy each have their own
            raise UserError(f"{path} is not a NumPy archive of plain arrays ({in_words(error)}).") from None
    load = need("safetensors.torch", "tables", "A safetensors file").load_file
    try:
        return load(path)
    except Exception as error:
        raise UserError(f"{path} is not a safetensors file ({in_words(error)}).") from None


def _check_archive(path: Path, numpy: Any) -> None:
    """Before anything is unpacked: each array is as large as it says it is, and all fit into memory."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_fits(sum(member.file_size for member in members), f"{path}, unpacked,")
        for member in members:
            with archive.open(member) as file:
                version = numpy.lib.format.read_magic(file)
                header = "read_array_header_1_0" if version == (1, 0) else "read_array_header_2_0"
                shape, _, kind = getattr(numpy.lib.format, header)(file)
                if kind.hasobject:
                    raise ValueError(f"{member.filename} holds Python objects")
                if kind.names is not None:
                    raise ValueError(f"{member.filename} holds records of several fields")
                if math.prod(shape) * kind.itemsize > member.file_size:
                    raise ValueError(f"{member.filename} says that it is of shape {shape}, and is shorter")


def _with_whole_texts(name: str, array: Any, numpy: Any) -> Any:
    """An array as it is: one of texts is numbers in the file, and not each number is a character."""
    if array.dtype.kind == "U" and array.nbytes:
        codes = numpy.frombuffer(array.tobytes(), dtype=f"{array.dtype.str[0]}u4")
        if ((codes > LAST_CHARACTER) | ((codes >= HALVES[0]) & (codes <= HALVES[1]))).any():
            raise ValueError(f"{name} holds texts with a character that does not exist")
    return array


def read_npz(path: Path, columns: Columns) -> Found:
    return from_arrays("NumPy archive", str(path), _array_roles(path, read_arrays(path), columns), columns)


def read_safetensors(path: Path, columns: Columns) -> Found:
    return from_arrays("safetensors file", str(path), _array_roles(path, read_arrays(path), columns), columns)


def _array_roles(path: Path, arrays: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """The arrays under the names x, y, client, context and features; a name in the settings stands for another."""
    default = DEFAULT
    wanted = {"x": "x", "y": columns.label if columns.label != default.label else "y"}
    optional = {"client": columns.client, "context": columns.context, "features": "features"}
    faults = [
        Fault("", "", f'there is no array "{name}"; there are {", ".join(arrays)}')
        for name in [*wanted.values(), *(n for n in (columns.client, columns.context) if n not in (*default, ""))]
        if name not in arrays
    ]
    if columns.features or columns.ignore:
        faults.append(Fault("", "", "features and ignore choose columns of a table, and this file holds arrays"))
    if faults:
        raise BadData(str(path), faults)
    return {role: arrays[name] for role, name in {**wanted, **optional}.items() if name in arrays}


def from_arrays(kind: str, name: str, arrays: dict[str, Any], roles: Columns = DEFAULT) -> Found:
    """x [n, ...], y [n], and perhaps client [n], context [n] and features (names), as arrays, tensors, lists or, of x,
    a data frame."""
    columns = table_of(arrays["x"])
    x = torch.stack([_stand_in(column) for column in columns], 1) if columns else numbers_of("x", arrays["x"], name)
    if x.ndim < 2 or not x.shape[0] or 0 in x.shape:
        raise BadData(
            name, [Fault("", "x", f"has shape {list(x.shape)}; it must be [rows, ...] with at least one row")]
        )
    n = x.shape[0]
    lists: dict[str, list[Any]] = {}
    for role in ("y", "client", "context"):
        values = _plain(name, role, arrays[role]) if role in arrays else [ALL] * n
        if len(values) != n:
            raise BadData(name, [Fault("", role, f"has {len(values)} entries for the {n} rows of x")])
        lists[role] = values
    places = [f"row {i + 1}" for i in range(n)]
    features = _names(name, arrays.get("features", []), x)
    x, levels, wrong = _features(name, x, columns, features, places, roles)
    faults, faulty = [fault for _, fault in wrong], {i for rows, _ in wrong for i in rows}
    named = {}
    for role in ("client", "context"):
        named[role], wrong = names_in(role, role, [name_of(value) for value in lists[role]], places, faulty)
        faults += [fault for _, fault in wrong]
        faulty |= {i for rows, _ in wrong for i in rows}
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in lists["y"])
    labels: Column = (
        torch.tensor(lists["y"], dtype=torch.float64) if numeric else [name_of(value) for value in lists["y"]]
    )
    return Found(
        kind, x, labels, named["client"], named["context"], features, lambda i: places[i], tuple(faults),
        frozenset(faulty), levels=levels,
    )  # fmt: skip


def table_of(x: Any, text: bool = False) -> list[Column] | None:
    """The columns of a table that is no plain array of numbers; None where it is one. text: even then its columns."""
    try:
        if not text:
            numbers_of("x", x)
            return None
    except BadData:
        pass
    return columns_of(x)


def _stand_in(column: Column) -> Tensor:
    return column if isinstance(column, Tensor) else torch.zeros(len(column), dtype=torch.float64)


def _names(name: str, given: Any, x: Tensor) -> tuple[str, ...]:
    features = tuple(name_of(value) for value in _plain(name, "features", given))
    if not features and x.ndim == 2:
        features = tuple(f"x{column}" for column in range(x.shape[1]))
    if features and (x.ndim != 2 or len(features) != x.shape[1]):
        raise BadData(
            name, [Fault("", "features", f"names {len(features)} columns of x, whose shape is {list(x.shape)}")]
        )
    return features


def _features(
    name: str, x: Tensor, columns: list[Column] | None, features: tuple[str, ...], places: list[str], roles: Columns
) -> tuple[Tensor, tuple[tuple[str, ...], ...], Wrong]:
    """Numbers and categories of a table; of anything else numbers without gaps."""
    unknown = [category for category in roles.categories if category not in features]
    if unknown:
        known = f"; there are {', '.join(features)}" if features else ", for x is no table"
        raise BadData(name, [Fault("", "", f'categories names "{unknown[0]}", which is no feature{known}')])
    if columns is None and not roles.categories:
        x, wrong = _numbers(x, features, places, gaps=x.ndim == 2 and roles.gaps)
        return x, (), wrong
    skip: set[int] = set()
    found = []
    for place, feature in enumerate(features):
        column = x[:, place] if columns is None else columns[place]
        found.append(feature_in(feature, column, places, skip, roles))
        skip |= {i for rows, _ in found[-1].wrong for i in rows}
    values = torch.stack([feature.values for feature in found], 1)
    return values, tuple(feature.levels for feature in found), [one for feature in found for one in feature.wrong]


def _numbers(x: Tensor, features: tuple[str, ...], places: list[str], gaps: bool) -> tuple[Tensor, Wrong]:
    """[n, ...] in the precision given; gaps: NaN is a missing value."""
    narrow = (x.float() if x.dtype == torch.float64 else x).flatten(1)
    fine = torch.isfinite(narrow) | (narrow.isnan() if gaps else False)
    wrong: Wrong = []
    for i in (~fine.all(1)).nonzero().flatten().tolist():
        at = int((~fine[i]).nonzero()[0, 0])
        column = features[at] if features else f"x{[int(v) for v in _unravel(at, x.shape[1:])]}"
        value = float(x[i].flatten()[at])
        gap = x.ndim == 2 and math.isnan(value)
        wrong.append(
            ([i], Fault(places[i], column, "the value is missing" if gap else f"{value} is not a finite number"))
        )
    return torch.where(fine.view(x.shape), x, 0.0).to(x.dtype), wrong


def _unravel(flat: int, shape: Sequence[int]) -> list[int]:
    place = []
    for size in reversed(shape):
        flat, rest = divmod(flat, size)
        place.append(rest)
    return place[::-1]


def numbers_of(role: str, values: Any, name: str = "arrays") -> Tensor:
    """An array, a tensor, a list or a data frame as a tensor of floats."""
    if isinstance(values, Tensor):
        made = values.detach().cpu()
    else:
        try:
            values = values.__array__() if hasattr(values, "__array__") else values
            made = torch.tensor(values if not hasattr(values, "dtype") else values.copy())
        except (TypeError, ValueError, RuntimeError):
            raise BadData(name, [Fault("", role, "is not an array of numbers")]) from None
    if made.is_complex():
        raise BadData(name, [Fault("", role, "holds complex numbers")])
    return made if made.dtype == torch.float64 else made.float()


def _plain(name: str, role: str, values: Any) -> list[Any]:
    """One-dimensional arrays, tensors and lists as plain Python values."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = [values]  # of no axis
    made = list(values)
    if any(isinstance(value, list | tuple) for value in made):
        if all(isinstance(value, list | tuple) and len(value) == 1 for value in made):
            return [value[0] for value in made]  # [n, 1]
        raise BadData(name, [Fault("", role, "must have one entry a row")])
    try:
        return [value.decode() if isinstance(value, bytes) else value for value in made]
    except UnicodeDecodeError:
        raise BadData(name, [Fault("", role, "holds bytes that are not UTF-8 text")]) from None
