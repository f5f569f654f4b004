"""What the last models say about held-out samples, kept in the run's folder: every score can be computed from it.

`predictions.json.gz` holds, by test case and client, the labels and the outputs (logits) of the personal and the global
models, as little-endian float32 in base64; the held-out data of the training contexts are the case `validation`.
Reading needs the standard library only. Samples of a deployment stay at its sites, so its server has no such file.
"""

import base64
import ctypes
import gzip
import json
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perinvfl.core.files import read_file, write_atomically
from perinvfl.core.sealed import digest
from perinvfl.core.unpacking import gunzip, parse_json
from perinvfl.errors import UserError
from perinvfl.runs.records import PREDICTIONS, Run

if TYPE_CHECKING:
    from torch import Tensor

    from perinvfl.data.federation import Federation

VALIDATION = "validation"
CONSTANT = "constant"  # kind of model: answers that know nothing but the labels that a client trained on
FORMAT = 1
Numbers = array  # of float32


@dataclass(frozen=True)
class Predictions:
    task: str
    round: int
    outputs: int  # numbers that a model puts out for one sample
    labels: dict[str, list[Numbers]]  # by case and client; empty for a client without a sample of it
    of: dict[str, dict[str, list[Numbers]]]  # by "personal" or "global": as labels, `outputs` numbers a sample
    label_mean: float = 0.0  # a regression's label is label_mean + label_scale * what is kept here
    label_scale: float = 1.0

    @property
    def lead(self) -> str:
        """Of the models that clients predict with."""
        return next(iter(self.of))


def collect(
    federation: "Federation",
    round: int,
    outputs: Mapping[str, Mapping[str, "Tensor"]],
    labels: Mapping[str, "Tensor"],
    contexts: Mapping[str, "Tensor"],
) -> Predictions:
    """From outputs [N, M, outputs] by kind and case, and the labels and contexts [N, M] of each case, of one trial."""
    real = {case: [row >= 0 for row in rows] for case, rows in contexts.items()}

    def of_clients(case: str, rows: "Tensor") -> list[Numbers]:
        return [_as_numbers(rows[i][own]) for i, own in enumerate(real[case])]

    return Predictions(
        federation.task,
        round,
        federation.outputs,
        {case: of_clients(case, rows) for case, rows in labels.items()},
        {kind: {case: of_clients(case, by_case[case]) for case in labels} for kind, by_case in outputs.items()},
        federation.schema.label_mean,
        federation.schema.label_scale,
    )


def _as_numbers(values: "Tensor") -> Numbers:
    """Copied as they lie in memory: a list of them on the way would cost more than all else that a run's end does."""
    plain, found = values.cpu().float().contiguous(), array("f")
    if plain.numel():
        found.frombytes((ctypes.c_char * (4 * plain.numel())).from_address(plain.data_ptr()))
    return found


def write_predictions(folder: Path, found: Predictions) -> str:
    """Its checksum, for the last event of the record."""
    fields = {
        "format": FORMAT,
        "task": found.task,
        "round": found.round,
        "outputs": found.outputs,
        "label_mean": found.label_mean,
        "label_scale": found.label_scale,
        "labels": _texts(found.labels),
        "of": {kind: _texts(cases) for kind, cases in found.of.items()},
    }
    text = json.dumps(fields, separators=(",", ":"))
    content = gzip.compress(text.encode(), compresslevel=1, mtime=0)  # the bits of floats hardly compress
    write_atomically(folder / PREDICTIONS, content)
    return digest(content)


def read_predictions(run: Run) -> Predictions | None:
    """None where the folder holds none: of a deployment, of packed records, and of runs made before they were kept."""
    path = run.folder / PREDICTIONS
    if not path.exists():
        return None
    content = read_file(path)
    expected = run.events[-1].get("predictions")
    if expected not in (None, digest(content)):
        raise UserError(f"{path} is damaged (its checksum differs); delete the run's folder and run again.")
    try:
        fields = parse_json(gunzip(content))
        if not isinstance(fields, dict):
            raise ValueError("no predictions")
        if fields.pop("format") > FORMAT:
            raise UserError(f"{path} was written by a later version of perinvfl; read it with that one.")
        labels, of = fields.pop("labels"), fields.pop("of")
        return Predictions(**fields, labels=_numbers(labels), of={kind: _numbers(of[kind]) for kind in of})
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}); delete the run's folder and run again.") from None


def _texts(cases: dict[str, list[Numbers]]) -> dict[str, list[str]]:
    return {case: [base64.b64encode(_swapped(row).tobytes()).decode() for row in rows] for case, rows in cases.items()}


def _numbers(cases: dict[str, list[str]]) -> dict[str, list[Numbers]]:
    return {case: [_swapped(array("f", base64.b64decode(row))) for row in rows] for case, rows in cases.items()}


def _swapped(row: Numbers) -> Numbers:
    """Little-endian on disk, whatever the machine."""
    if sys.byteorder == "little":
        return row
    turned = array("f", row)
    turned.byteswap()
    return turned
