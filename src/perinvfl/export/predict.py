"""Answers for a table, an array or photographs, from an exported file or from a run."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.files import write_atomically
from perinvfl.core.naming import class_names
from perinvfl.data.own.inputs import Inputs
from perinvfl.errors import UserError
from perinvfl.export.inputs import read_input, usable_part
from perinvfl.export.module import Description
from perinvfl.export.predictor import Predictor

WHY = "why there is no prediction"


@dataclass(frozen=True)
class Answers:
    """What models say about the rows of a file."""

    found: dict[str, Tensor]  # by name, of the rows that can be used
    description: Description  # of one of the models
    inputs: Inputs
    notes: tuple[str, ...] = ()  # what a person should know of who answered


def answers_of(predictor: Predictor, path: Path, id: str = "") -> Answers:
    """One model about all rows."""
    inputs = read_input(path, predictor.description, id)
    return Answers(predict(predictor, usable_part(inputs, path)), predictor.description, inputs)


def predict(predictor: Predictor, x: Tensor, chunk: int = 4096) -> dict[str, Tensor]:
    parts = [predictor(piece) for piece in x.split(chunk)] if len(x) else [predictor(x)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def as_csv(answers: Answers) -> str:
    """One line per row of the input, which begins with its name where it has one; a row that could not be used has
    no prediction but says why."""
    found, description, inputs = answers.found, answers.description, answers.inputs
    probability = found.get("probability")
    if probability is None:
        head, said = ["prediction"], [[f"{value:.7g}"] for value in found["prediction"].tolist()]
    else:
        names = class_names(description.classes, probability.shape[1])
        head = ["prediction", *(f"probability {name}" for name in names)]
        pairs = zip(found["prediction"].tolist(), probability.tolist(), strict=True)
        said = [[names[answer], *(f"{value:.6f}" for value in row)] for answer, row in pairs]
    rows = [[""] * len(head) for _ in range(len(inputs.x))]
    for row, answer in zip(inputs.usable, said, strict=True):
        rows[row] = answer
    if inputs.unusable:
        why = {row: str(fault) for row, fault in inputs.unusable}
        head, rows = [*head, WHY], [[*cells, why.get(row, "")] for row, cells in enumerate(rows)]
    if inputs.names:
        head = [inputs.title, *head]
        rows = [[name, *cells] for name, cells in zip(inputs.names, rows, strict=True)]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([head, *rows])
    return buffer.getvalue()


def write_answers(answers: Answers, path: Path) -> None:
    found, inputs = answers.found, answers.inputs
    if path.suffix == ".npz":
        import numpy

        buffer = io.BytesIO()
        arrays: dict[str, Any] = {name: part.numpy() for name, part in found.items()}
        if inputs.names:
            key = "files" if inputs.title == "file" else "id"
            arrays[key] = numpy.array([inputs.names[row] for row in inputs.usable])
        if inputs.unusable:  # answers are of the other rows, by number from 0
            arrays["rows"] = numpy.array(inputs.usable)
        numpy.savez(buffer, **arrays)
        write_atomically(path, buffer.getvalue())
    elif path.suffix == ".csv":
        write_atomically(path, as_csv(answers).encode())
    else:
        raise UserError(f"{path}: the name must end in .csv or .npz.")


def unusable_in_words(inputs: Inputs, most: int = 10) -> list[str]:
    """One line that counts the rows without a prediction, then one for each, up to a number of them."""
    if not inputs.unusable:
        return []
    lines = [f"{len(inputs.unusable)} of {len(inputs.x)} rows could not be used and have no prediction:"]
    lines += [f"  {fault}" for _, fault in inputs.unusable[:most]]
    more = len(inputs.unusable) - most
    return lines + ([f"  ... and {more} more"] if more > 0 else [])
