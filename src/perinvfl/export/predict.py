"""Answers for a table or an array of samples, from an exported file or from a run."""

import csv
import io
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.checkpoint import write_atomically
from perinvfl.errors import UserError
from perinvfl.export.formats import Predictor
from perinvfl.export.module import Description
from perinvfl.naming import class_names


def read_input(path: Path, description: Description) -> Tensor:
    """[B, ...] float32 from an .npz with an array x, or from a .csv with the model's columns."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; give an .npz with an array x, or a .csv.")
    if path.suffix == ".npz":
        return _read_npz(path, description)
    if path.suffix == ".csv":
        return _read_csv(path, description)
    raise UserError(f"{path}: the name must end in .npz or .csv.")


def _read_npz(path: Path, description: Description) -> Tensor:
    import numpy

    try:
        with numpy.load(path, allow_pickle=False) as archive:
            if "x" not in archive:
                raise UserError(f"{path} holds no array x; it holds {', '.join(archive) or 'nothing'}.")
            given = archive["x"]
            if description.dtype == "uint8" and given.dtype != numpy.uint8:
                raise UserError(f"{path}: x is {given.dtype}; the model takes pictures as uint8, 0 to 255.")
            x = torch.from_numpy(given.astype(description.dtype))
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is no NumPy archive of plain numbers ({error}).") from None
    if tuple(x.shape[1:]) != tuple(description.shape) or x.ndim == 0:
        raise UserError(f"{path}: x has shape {tuple(x.shape)}; the model takes (any, {_listed(description.shape)}).")
    wrong = (~torch.isfinite(x.flatten(1)).all(1)).nonzero()
    if len(wrong):
        raise UserError(f"{path}: x[{int(wrong[0])}] holds a value that is not finite.")
    return x


def _read_csv(path: Path, description: Description) -> Tensor:
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = [line for line in csv.reader(file) if line]
    if not lines:
        raise UserError(f"{path} is empty.")
    if description.features:
        header, first = lines[0], 2
        missing = [name for name in description.features if name not in header]
        if missing:
            raise UserError(f"{path} has no column {missing[0]}; the model takes {', '.join(description.features)}.")
        places, rows = [header.index(name) for name in description.features], lines[1:]
        names = list(description.features)
    else:
        titled = not all(_number(cell) is not None for cell in lines[0])
        rows, first = lines[int(titled) :], 1 + int(titled)
        width = math.prod(description.shape)
        places, names = list(range(width)), [str(place + 1) for place in range(width)]
    values = [_row(path, row, places, names, number) for number, row in enumerate(rows, start=first)]
    return torch.tensor(values, dtype=torch.float32).view(len(values), *description.shape)


def _row(path: Path, row: list[str], places: list[int], names: list[str], line: int) -> list[float]:
    values = []
    for place, name in zip(places, names, strict=True):
        cell = row[place] if place < len(row) else ""
        value = _number(cell)
        if value is None:
            raise UserError(f'{path}, line {line}, column {name}: "{cell}" is not a finite number.')
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


def as_csv(found: dict[str, Tensor], description: Description) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    probability = found.get("probability")
    if probability is None:
        writer.writerow(["prediction"])
        writer.writerows([f"{value:.7g}"] for value in found["prediction"].tolist())
        return buffer.getvalue()
    names = class_names(description.classes, probability.shape[1])
    writer.writerow(["prediction", *(f"probability {name}" for name in names)])
    for answer, row in zip(found["prediction"].tolist(), probability.tolist(), strict=True):
        writer.writerow([names[answer], *(f"{value:.6f}" for value in row)])
    return buffer.getvalue()


def write_answers(found: dict[str, Tensor], description: Description, path: Path) -> None:
    if path.suffix == ".npz":
        import numpy

        buffer = io.BytesIO()
        arrays: dict[str, Any] = {name: part.numpy() for name, part in found.items()}
        numpy.savez(buffer, **arrays)
        write_atomically(path, buffer.getvalue())
    elif path.suffix == ".csv":
        write_atomically(path, as_csv(found, description).encode())
    else:
        raise UserError(f"{path}: the name must end in .csv or .npz.")


def _listed(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
