"""Answers for a table, an array or photographs, from an exported file or from a run."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.files import write_atomically
from perinvfl.core.naming import class_names
from perinvfl.data.own import readers
from perinvfl.errors import UserError
from perinvfl.export.formats import Predictor
from perinvfl.export.module import Description


def read_input(path: Path, description: Description) -> tuple[Tensor, list[str]]:
    """[B, ...] what the model is to answer for, from a file as it is trained on; of photographs, also their names."""
    if path.is_dir():
        return _read_photos(path, description)
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a table, an array x in .npz or .safetensors, or photographs.")
    ending = path.suffix.lower()
    if ending in readers.ARRAYS:
        return _read_array(path, description), []
    if ending in readers.TABLES and description.features:
        return readers.read_features(path, description.features), []
    if ending == ".csv":
        return _read_csv(path, description), []
    known = [*readers.ARRAYS, *(readers.TABLES if description.features else [".csv"])]
    raise UserError(f"{path}: the name must end in {', '.join(known)}, or be that of a folder of photographs.")


def _read_photos(folder: Path, description: Description) -> tuple[Tensor, list[str]]:
    """Every photograph below a folder, wherever it lies, fitted to the model's square."""
    channels, *sides = description.shape
    if len(sides) != 2 or sides[0] != sides[1] or channels not in (1, 3) or description.dtype != "float32":
        raise UserError(f"{folder} is a folder, and the model takes ({_listed(description.shape)}), no photographs.")
    files = readers.photo_files(folder)
    if not files:
        raise UserError(f"{folder} holds no photograph.")
    found = []
    for path in files:
        try:
            found.append(readers.read_photo(path, sides[0], channels == 3))
        except UserError as error:
            raise UserError(f"{path} {str(error).rstrip('.')}.") from None
    return torch.stack(found), [path.relative_to(folder).as_posix() for path in files]


def _read_array(path: Path, description: Description) -> Tensor:
    x = _x_of(path)
    if description.dtype == "uint8" and x.dtype != torch.uint8:
        raise UserError(f"{path}: x is {str(x.dtype)[6:]}; the model takes pictures as uint8, 0 to 255.")
    if tuple(x.shape[1:]) != tuple(description.shape) or x.ndim == 0:
        raise UserError(f"{path}: x has shape {tuple(x.shape)}; the model takes (any, {_listed(description.shape)}).")
    x = x.to(getattr(torch, description.dtype))
    wrong = (~torch.isfinite(x.flatten(1)).all(1)).nonzero()
    if len(wrong):
        raise UserError(f"{path}: x[{int(wrong[0])}] holds a value that is not finite.")
    return x


def _x_of(path: Path) -> Tensor:
    arrays = readers.read_arrays(path)
    if "x" not in arrays:
        raise UserError(f"{path} holds no array x; it holds {', '.join(arrays) or 'nothing'}.")
    try:
        return torch.as_tensor(arrays["x"])
    except TypeError:
        raise UserError(f"{path}: x does not hold plain numbers.") from None


def _read_csv(path: Path, description: Description) -> Tensor:
    """Of a model whose columns have no names: by their order, with or without a first line of titles."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a CSV file ({error}).") from None
    if not lines:
        raise UserError(f"{path} is empty.")
    titled = not all(_number(cell) is not None for cell in lines[0])
    width = math.prod(description.shape)
    values = [_row(path, row, width, number) for number, row in enumerate(lines[titled:], start=1 + titled)]
    return torch.tensor(values, dtype=torch.float32).view(len(values), *description.shape)


def _row(path: Path, row: list[str], width: int, line: int) -> list[float]:
    values = []
    for place in range(width):
        cell = row[place] if place < len(row) else ""
        value = _number(cell)
        if value is None:
            raise UserError(f'{path}, line {line}, column {place + 1}: "{cell}" is not a finite number.')
        values.append(value)
    return values


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def predict(predictor: Predictor, x: Tensor, chunk: int = 4096) -> dict[str, Tensor]:
    parts = [predictor(piece) for piece in x.split(chunk)] if len(x) else [predictor(x)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def as_csv(found: dict[str, Tensor], description: Description, files: Sequence[str] = ()) -> str:
    """One line a sample; of photographs it begins with the name."""
    probability = found.get("probability")
    if probability is None:
        head, rows = ["prediction"], [[f"{value:.7g}"] for value in found["prediction"].tolist()]
    else:
        names = class_names(description.classes, probability.shape[1])
        head = ["prediction", *(f"probability {name}" for name in names)]
        pairs = zip(found["prediction"].tolist(), probability.tolist(), strict=True)
        rows = [[names[answer], *(f"{value:.6f}" for value in row)] for answer, row in pairs]
    if files:
        head, rows = ["file", *head], [[file, *row] for file, row in zip(files, rows, strict=True)]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([head, *rows])
    return buffer.getvalue()


def write_answers(found: dict[str, Tensor], description: Description, path: Path, files: Sequence[str] = ()) -> None:
    if path.suffix == ".npz":
        import numpy

        buffer = io.BytesIO()
        arrays: dict[str, Any] = {name: part.numpy() for name, part in found.items()}
        if files:
            arrays["files"] = numpy.array(files)
        numpy.savez(buffer, **arrays)
        write_atomically(path, buffer.getvalue())
    elif path.suffix == ".csv":
        write_atomically(path, as_csv(found, description, files).encode())
    else:
        raise UserError(f"{path}: the name must end in .csv or .npz.")


def _listed(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
