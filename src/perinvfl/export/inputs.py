"""What a model is to answer for: tables, arrays and photographs. A row that cannot be used is named, not the file
refused."""

import csv
import math
from pathlib import Path

import torch
from torch import Tensor

from perinvfl.data.encoding import Encoding, unread
from perinvfl.data.own import readers
from perinvfl.data.own.inputs import Inputs, read_table
from perinvfl.data.own.rows import Fault
from perinvfl.errors import UserError
from perinvfl.export.module import Description


def read_input(path: Path, description: Description, id: str = "") -> Inputs:
    """From a file as it is trained on; `id` is the column of a table, or the array, that names the rows."""
    if path.is_dir():
        if id:
            raise UserError(f"--id {id}: photographs are named by their files; leave it out.")
        return _read_photos(path, description)
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a table, an array x in .npz or .safetensors, or photographs.")
    ending = path.suffix.lower()
    if ending in readers.ARRAYS:
        return _read_array(path, description, id)
    if ending in readers.TABLES and description.features:
        columns = description.columns or tuple(map(Encoding, description.features))
        return read_table(path, columns, id, bool(description.columns), unread(columns, description.lens))
    if ending == ".csv":
        if id:
            raise UserError(f"--id {id}: the model's columns have no names, so {path} is read by their order.")
        return _read_csv(path, description)
    known = [*readers.ARRAYS, *(readers.TABLES if description.features else [".csv"])]
    raise UserError(f"{path}: the name must end in {', '.join(known)}, or be that of a folder of photographs.")


def _read_photos(folder: Path, description: Description) -> Inputs:
    """Every photograph below a folder, wherever it lies, fitted to the model's square."""
    channels, *sides = description.shape
    if len(sides) != 2 or sides[0] != sides[1] or channels not in (1, 3) or description.dtype != "float32":
        raise UserError(f"{folder} is a folder, and the model takes ({_listed(description.shape)}), no photographs.")
    files = readers.photo_files(folder)
    if not files:
        raise UserError(f"{folder} holds no photograph.")
    x, unusable = torch.zeros(len(files), *description.shape), []
    names = tuple(path.relative_to(folder).as_posix() for path in files)
    for row, path in enumerate(files):
        try:
            x[row] = readers.read_photo(path, sides[0], channels == 3)
        except readers.BadPhoto as error:
            unusable.append((row, Fault(names[row], "", str(error).rstrip("."))))
    return Inputs(x, names, "file", tuple(unusable))


def _read_array(path: Path, description: Description, id: str) -> Inputs:
    arrays = readers.read_arrays(path)
    for name in ("x", *([id] if id else [])):
        if name not in arrays:
            raise UserError(f"{path} holds no array {name}; it holds {', '.join(arrays) or 'nothing'}.")
    try:
        x = torch.as_tensor(arrays["x"])
    except (TypeError, ValueError):  # ValueError: numbers in the byte order of another machine
        raise UserError(f"{path}: x does not hold plain numbers.") from None
    if description.dtype == "uint8" and x.dtype != torch.uint8:
        raise UserError(f"{path}: x is {str(x.dtype)[6:]}; the model takes pictures as uint8, 0 to 255.")
    if tuple(x.shape[1:]) != tuple(description.shape) or x.ndim == 0:
        raise UserError(f"{path}: x has shape {tuple(x.shape)}; the model takes (any, {_listed(description.shape)}).")
    x = x.to(getattr(torch, description.dtype))
    if id and len(arrays[id].shape) != 1:
        raise UserError(f"{path}: {id} has shape {tuple(arrays[id].shape)}; it must hold one name for each row of x.")
    names = tuple(readers.names_of(readers.as_column(arrays[id]))) if id else ()
    if id and len(names) != len(x):
        raise UserError(f"{path}: {id} has {len(names)} entries for the {len(x)} rows of x.")
    fine = torch.isfinite(x) | (x.isnan() & bool(description.columns))
    wrong = (~fine.flatten(1).all(1)).nonzero().flatten().tolist()
    unusable = [(row, Fault(f"x[{row}]", "", "holds a value that is not finite")) for row in wrong]
    return Inputs(x, names, id, tuple(unusable))


def _read_csv(path: Path, description: Description) -> Inputs:
    """Of a model whose columns have no names: by their order, with or without a first line of titles."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line]
    except UnicodeDecodeError:
        raise UserError(f"{path} {readers.why_not_utf8(path)}.") from None
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file ({error}).") from None
    if not lines:
        raise UserError(f"{path} is empty.")
    titled = not all(_number(cell) is not None for cell in lines[0])
    width = math.prod(description.shape)
    x, unusable = torch.zeros(len(lines) - titled, width), []
    for row, cells in enumerate(lines[titled:]):
        values = [_number(cell) for cell in [*cells, *[""] * width][:width]]
        known = [value for value in values if value is not None]
        if len(known) == width:
            x[row] = torch.tensor(known)
            continue
        place = values.index(None)
        cell = cells[place] if place < len(cells) else ""
        where = f"line {row + 1 + titled}, column {place + 1}"
        unusable.append((row, Fault(where, "", f'"{cell}" is not a finite number')))
    return Inputs(x.view(len(x), *description.shape), unusable=tuple(unusable))


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _listed(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def usable_part(inputs: Inputs, path: Path) -> Tensor:
    """[n, ...] the rows that can be used; refuses a file that has none."""
    usable = inputs.usable
    if inputs.unusable and not usable:
        more = f" ({len(inputs.unusable) - 1} more rows, none of them usable)" if len(inputs.unusable) > 1 else ""
        raise UserError(f"{path}: {inputs.unusable[0][1]}{more}.")
    return inputs.x if not inputs.unusable else inputs.x[usable]
