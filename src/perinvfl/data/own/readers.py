"""Own data from files: CSV by the standard library, NumPy archives, safetensors and Parquet by their own libraries,
folders of photographs by Pillow. Each library is imported when such a file is read, and asked for by name if absent."""

import csv
import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from perinvfl.core.config import suggest
from perinvfl.data.own.rows import MISSING, NAMELESS, BadData, Columns, Fault, Found, name_of, number_of
from perinvfl.errors import UserError

TABLES = (".csv", ".tsv", ".parquet", ".pq")
ARRAYS = (".npz", ".safetensors")
PHOTOS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
NOT_DATA = ("thumbs.db", "desktop.ini")  # what systems leave in folders, as are names that begin with a dot
ALL = "all"  # the client or context of data that name none


def read(path: Path, columns: Columns, image_size: int, colour: bool) -> Found:
    """Whatever lies at a path."""
    if path.is_dir():
        return read_photos(path, image_size, colour)
    readers = {
        ".csv": read_csv,
        ".tsv": read_csv,
        ".parquet": read_parquet,
        ".pq": read_parquet,
        ".npz": read_npz,
        ".safetensors": read_safetensors,
    }
    if path.suffix.lower() not in readers:
        raise UserError(f"{path} is of no known kind: give a folder of photographs or {', '.join(readers)}.")
    try:
        return readers[path.suffix.lower()](path, columns)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None


def need(module: str, extra: str, reason: str) -> Any:
    """A library that only some files call for."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        library = module.partition(".")[0]
        raise UserError(f"{reason} needs {library}, which is not installed: pip install 'perinvfl[{extra}]'.") from None


# Tables ------------------------------------------------------------------------------------------------------------


class Cells(NamedTuple):
    """A table as it stands."""

    kind: str
    header: list[str]
    columns: "dict[str, list[str] | Tensor]"
    places: list[str]  # how a person would call each row
    ragged: list[tuple[int, Fault]]  # rows with a cell too many or too few


def read_csv(path: Path, columns: Columns) -> Found:
    cells = csv_cells(path)
    roles = _roles(path, cells.header, columns)
    if not cells.places:
        raise BadData(str(path), [Fault("", "", "there is no row below the names of the columns")])
    return _table(cells, roles)


def csv_cells(path: Path) -> Cells:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=_delimiter(first, path), strict=True)
            lines = [(reader.line_num, row) for row in reader if row]
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except csv.Error as error:
        raise BadData(str(path), [Fault(f"line {reader.line_num}", "", f"is not CSV: {error}")]) from None
    if not lines:
        raise BadData(str(path), [Fault("", "", "the file is empty; the first line must name the columns")])
    header = [name.strip() for name in lines[0][1]]
    body = lines[1:]
    ragged = [
        (i, Fault(f"line {line}", "", f"has {len(row)} cells where the first line names {len(header)} columns"))
        for i, (line, row) in enumerate(body)
        if len(row) != len(header)
    ]
    blank = [""] * len(header)
    whole = [row if len(row) == len(header) else blank for _, row in body]
    columns: dict[str, list[str] | Tensor] = {name: [row[at] for row in whole] for at, name in enumerate(header)}
    return Cells("CSV table", header, columns, [f"line {line}" for line, _ in body], ragged)


def read_parquet(path: Path, columns: Columns) -> Found:
    arrow, table = _parquet(path)
    roles = _roles(path, list(table.column_names), columns)
    if not table.num_rows:
        raise BadData(str(path), [Fault("", "", "the table has no row")])
    return _table(_parquet_cells(arrow, table, [*roles.features, roles.label, roles.client, roles.context]), roles)


def _parquet(path: Path) -> tuple[Any, Any]:
    arrow = need("pyarrow", "tables", "A Parquet table")
    try:
        return arrow, need("pyarrow.parquet", "tables", "A Parquet table").read_table(path)
    except arrow.ArrowException as error:
        raise UserError(f"{path} is not a Parquet file: {str(error).splitlines()[0]}") from None


def _parquet_cells(arrow: Any, table: Any, used: Sequence[str]) -> Cells:
    columns = {name: _parquet_column(arrow, table.column(name)) for name in table.column_names if name in used}
    return Cells("Parquet table", list(table.column_names), columns, [f"row {i + 1}" for i in range(len(table))], [])


def read_features(path: Path, features: Sequence[str]) -> Tensor:
    """[n, columns] the named columns of a table, in that order; others are passed over."""
    parquet = path.suffix.lower() in (".parquet", ".pq")
    cells = _parquet_cells(*_parquet(path), features) if parquet else csv_cells(path)
    missing = [name for name in features if name not in cells.header]
    if missing:
        raise UserError(f"{path} has no column {missing[0]}; the model takes {', '.join(features)}.")
    faults, skip = [fault for _, fault in cells.ragged], {i for i, _ in cells.ragged}
    faults += [Fault("", name, "stands twice") for name in features if cells.header.count(name) > 1]
    columns = []
    for name in features:
        numbers, wrong = _numbers(name, cells.columns[name], cells.places, skip)
        columns.append(numbers)
        faults += [fault for _, fault in wrong]
    if faults:
        raise BadData(str(path), faults)
    return torch.stack(columns, 1).float()


def _parquet_column(arrow: Any, column: Any) -> "list[str] | Tensor":
    """Numbers without gaps as a tensor, anything else as text; a missing value is an empty text."""
    kind = column.type
    numeric = arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind)
    if numeric and not column.null_count:
        return torch.tensor(column.cast(arrow.float64()).to_numpy(), dtype=torch.float64)
    return ["" if value is None else name_of(value) for value in column.to_pylist()]


def _delimiter(first: str, path: Path) -> str:
    if path.suffix.lower() == ".tsv":
        return "\t"
    return max((",", ";", "\t"), key=first.count)  # the first of equals


def _roles(path: Path, header: Sequence[str], columns: Columns) -> Columns:
    """The columns as they will be used, every feature named; refuses a header that cannot be meant."""
    faults = []
    for place, name in enumerate(header, start=1):
        if not name:
            faults.append(Fault("", "", f"column {place} has no name"))
        elif list(header).index(name) < place - 1:
            faults.append(Fault("", name, f"stands twice, in places {list(header).index(name) + 1} and {place}"))
    for role in ("label", "client", "context"):
        name = getattr(columns, role)
        if name and name not in header:
            none = "" if role == "label" else f', or {role} = "" if there is none'
            faults.append(
                Fault(
                    "",
                    "",
                    f'there is no column "{name}"; say with {role} which column it is{none}{_near(name, header)}',
                )
            )
    if not columns.label:
        faults.append(Fault("", "", "label must name the column that is to be predicted"))
    given = [name for name in (columns.label, columns.client, columns.context) if name]
    for name in dict.fromkeys(name for name in given if given.count(name) > 1):
        faults.append(Fault("", name, "cannot be two of label, client and context"))
    for key in ("features", "ignore"):
        for name in getattr(columns, key):
            if name not in header:
                faults.append(Fault("", "", f'{key} names "{name}", which is no column{_near(name, header)}'))
            elif name in given:
                faults.append(Fault("", name, f"is the label, client or context, and cannot be in {key}"))
    taken = {*given, *columns.ignore}
    features = columns.features or tuple(name for name in header if name not in taken)
    if not features and not faults:
        faults.append(Fault("", "", "no column is left to predict from"))
    if faults:
        raise BadData(str(path), faults)
    return columns._replace(features=tuple(name for name in features if name not in columns.ignore))


def _near(name: str, header: Sequence[str]) -> str:
    told = suggest(name, [column for column in header if column])
    return told.rstrip("?.").replace("; known are", "; there are")


def _table(table: Cells, roles: Columns) -> Found:
    cells, places, ragged = table.columns, table.places, table.ragged
    faults, faulty = [fault for _, fault in ragged], {i for i, _ in ragged}
    columns = []
    for name in roles.features:
        numbers, wrong = _numbers(name, cells[name], places, faulty)
        columns.append(numbers)
        faults += [fault for _, fault in wrong]
        faulty |= {i for rows, _ in wrong for i in rows}
    named = {}
    for role, name in (("client", roles.client), ("context", roles.context)):
        named[role], wrong = _names(role, name, cells[name] if name else [ALL] * len(places), places, faulty)
        faults += [fault for _, fault in wrong]
        faulty |= {i for rows, _ in wrong for i in rows}
    return Found(
        kind=table.kind,
        x=torch.stack(columns, 1),
        labels=_labels(cells[roles.label]),
        client=named["client"],
        context=named["context"],
        features=roles.features,
        place=lambda i: places[i],
        faults=tuple(faults),
        faulty=frozenset(faulty),
    )


Wrong = list[tuple[list[int], Fault]]  # the rows that a fault spoils


def _numbers(name: str, column: "list[str] | Tensor", places: list[str], skip: set[int]) -> tuple[Tensor, Wrong]:
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
        told = f'holds text ("{column[texts[0]]}" in {places[texts[0]]}) where features must be numbers; '
        return torch.zeros(len(column), dtype=torch.float64), [
            ([], Fault("", name, told + "name it in ignore, or turn it into numbers"))
        ]
    wrong = [([i], Fault(places[i], name, _what(column[i]))) for i in sorted(bad)]
    return torch.tensor([0.0 if v is None else v for v in values], dtype=torch.float64), wrong


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


def _names(
    role: str, name: str, column: "list[str] | Tensor", places: list[str], skip: set[int]
) -> tuple[list[str], Wrong]:
    names = [name_of(value) for value in (column.tolist() if isinstance(column, Tensor) else column)]
    missing = [i for i, text in enumerate(names) if text.lower() in NAMELESS and i not in skip]
    return names, [([i], Fault(places[i], name, f"the {role} is missing")) for i in missing]


def _labels(column: "list[str] | Tensor") -> "list[str] | Tensor":
    return column if isinstance(column, Tensor) else list(column)


# Arrays ------------------------------------------------------------------------------------------------------------


def read_arrays(path: Path) -> dict[str, Any]:
    """All arrays of a file by name: NumPy's of an .npz, tensors of a .safetensors."""
    if path.suffix.lower() == ".npz":
        numpy = need("numpy", "tables", "A NumPy archive")
        try:
            with numpy.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except Exception as error:  # zipfile, zlib and numpy each have their own
            raise UserError(f"{path} is not a NumPy archive of plain arrays ({error}).") from None
    load = need("safetensors.torch", "tables", "A safetensors file").load_file
    try:
        return load(path)
    except Exception as error:
        raise UserError(f"{path} is not a safetensors file ({error}).") from None


def read_npz(path: Path, columns: Columns) -> Found:
    return from_arrays("NumPy archive", str(path), _array_roles(path, read_arrays(path), columns))


def read_safetensors(path: Path, columns: Columns) -> Found:
    return from_arrays("safetensors file", str(path), _array_roles(path, read_arrays(path), columns))


def _array_roles(path: Path, arrays: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """The arrays under the names x, y, client, context and features; a name in the settings stands for another."""
    default = Columns()
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


def from_arrays(kind: str, name: str, arrays: dict[str, Any]) -> Found:
    """x [n, ...], y [n], and perhaps client [n], context [n] and features (names), as arrays, tensors or lists."""
    x = numbers_of("x", arrays["x"], name)
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
    finite = torch.isfinite(x.float() if x.dtype == torch.float64 else x).flatten(1)
    bad = (~finite.all(1)).nonzero().flatten().tolist()
    features = tuple(name_of(value) for value in _plain(name, "features", arrays.get("features", [])))
    if not features and x.ndim == 2:
        features = tuple(f"x{column}" for column in range(x.shape[1]))
    if features and (x.ndim != 2 or len(features) != x.shape[1]):
        raise BadData(
            name, [Fault("", "features", f"names {len(features)} columns of x, whose shape is {list(x.shape)}")]
        )
    faults, faulty = [], set(bad)
    for i in bad:
        at = int((~finite[i]).nonzero()[0, 0])
        column = features[at] if features else f"x{[int(v) for v in _unravel(at, x.shape[1:])]}"
        faults.append(Fault(places[i], column, f"{float(x[i].flatten()[at])} is not a finite number"))
    named = {}
    for role in ("client", "context"):
        named[role], wrong = _names(role, role, [name_of(value) for value in lists[role]], places, faulty)
        faults += [fault for _, fault in wrong]
        faulty |= {i for rows, _ in wrong for i in rows}
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in lists["y"])
    labels: list[str] | Tensor = (
        torch.tensor(lists["y"], dtype=torch.float64) if numeric else [name_of(value) for value in lists["y"]]
    )
    return Found(
        kind, x.nan_to_num(0.0, 0.0, 0.0), labels, named["client"], named["context"], features,
        lambda i: places[i], tuple(faults), frozenset(faulty),
    )  # fmt: skip


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
    made = [values] if isinstance(values, str) else list(values)
    if any(isinstance(value, list | tuple) for value in made):
        if all(isinstance(value, list | tuple) and len(value) == 1 for value in made):
            return [value[0] for value in made]  # [n, 1]
        raise BadData(name, [Fault("", role, "must have one entry a row")])
    return [value.decode() if isinstance(value, bytes) else value for value in made]


# Photographs -------------------------------------------------------------------------------------------------------


def photo_files(folder: Path) -> list[Path]:
    """Every file below a folder that a person put there, in a fixed order."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        path
        for path in found
        if path.name.lower() not in NOT_DATA
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def read_photo(path: Path, size: int, colour: bool) -> Tensor:
    """[3 or 1, size, size] between 0 and 1."""
    image = need("PIL.Image", "photos", "A photograph")
    ops = need("PIL.ImageOps", "photos", "A photograph")
    if path.suffix.lower() not in PHOTOS:
        raise UserError(f"is not a photograph (known are {', '.join(PHOTOS)})")
    try:
        with image.open(path) as opened:
            upright = ops.exif_transpose(opened).convert("RGB" if colour else "L")
            fitted = ops.fit(upright, (size, size))  # resized to cover the square, then its middle
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"cannot be read as a photograph ({error})") from None
    pixels = torch.frombuffer(bytearray(fitted.tobytes()), dtype=torch.uint8)
    return pixels.view(size, size, -1).permute(2, 0, 1) / 255


def read_photos(folder: Path, size: int, colour: bool) -> Found:
    """client/context/class/any name.png: [n, 3 or 1, size, size] between 0 and 1."""
    need("PIL.Image", "photos", "A folder of photographs")  # before any photograph is blamed
    files = photo_files(folder)
    if not files:
        raise BadData(str(folder), [Fault("", "", "there is no photograph in it; they lie in client/context/class/")])
    names = [path.relative_to(folder) for path in files]
    x = torch.zeros(len(files), 3 if colour else 1, size, size)
    faults, faulty = [], set()

    def wrong(i: int, what: str) -> None:
        faults.append(Fault(str(names[i]), "", what))
        faulty.add(i)

    for i, path in enumerate(files):
        if len(names[i].parts) != 4:
            wrong(i, "does not lie in client/context/class/")
        else:
            try:
                x[i] = read_photo(path, size, colour)
            except UserError as error:
                wrong(i, str(error))
    parts = [(*name.parts, "?", "?", "?")[:3] for name in names]
    return Found(
        kind="folder of photographs",
        x=x,
        labels=[part[2] for part in parts],
        client=[part[0] for part in parts],
        context=[part[1] for part in parts],
        features=(),
        place=lambda i: str(names[i]),
        faults=tuple(faults),
        faulty=frozenset(faulty),
        named=True,
    )
