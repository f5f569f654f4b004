"""How each kind of file is read: as the commands read it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from perinvfl.audit import audit_table
from perinvfl.core import checkpoint, config
from perinvfl.data.benchmarks.album import read_about, read_album
from perinvfl.data.benchmarks.sources import read_idx
from perinvfl.data.own.files import FileSettings, file_federation
from perinvfl.data.own.guess import guess_roles
from perinvfl.data.own.inputs import Inputs
from perinvfl.data.own.readers import whole_table
from perinvfl.data.own.survey import survey
from perinvfl.export.formats import read_model
from perinvfl.export.inputs import read_input, usable_part
from perinvfl.export.module import Description
from perinvfl.export.predict import Answers, as_csv, predict
from perinvfl.flower.site_data import read_own_arrays
from perinvfl.models.resnet import parameter_shapes, read_weights
from perinvfl.runs.predictions import read_predictions
from perinvfl.runs.records import Run, find_runs

TABLE = Description(
    "binary", (2,), 1, (), ("age", "dose [mg/dl]"), "a", True, "r", {"kind": "mlp", "hidden": [3]}, "float32"
)
IMAGES = Description("binary", (3, 8, 8), 1, (), (), "a", True, "r", {"kind": "mlp", "hidden": [3]}, "float32")


def _own_data(path: Path, asked: dict[str, Any], chance: float) -> None:
    settings = config.build(FileSettings, {"path": str(path), **asked}, "data")
    json.dumps(survey(settings))
    if chance < 0.4:
        file_federation(settings, 0)
    elif chance < 0.5:
        audit_table(settings)


def _read_table(path: Path, how: Any) -> None:
    _, asked, chance = how
    if chance > 0.9:
        cells = whole_table(path)
        guess_roles(cells, {})
    elif chance > 0.7:
        inputs = read_input(path, TABLE, "kind" if chance > 0.8 else "")
        usable_part(inputs, path)
    else:
        _own_data(path, asked, chance)


def _read_arrays(path: Path, how: Any) -> None:
    _, task, chance = how
    if chance < 0.3:
        described = IMAGES if chance < 0.1 else TABLE
        usable_part(read_input(path, described, "client" if chance < 0.2 else ""), path)
    elif chance < 0.6 and task != "auto":
        read_own_arrays(path, task, 3 if task == "multiclass" else 1, ())
    else:
        _own_data(path, {"task": task, "context": ""}, 0.2)


def _read_photograph(path: Path, how: Any) -> None:
    folder = path.parents[3]
    usable_part(read_input(folder, IMAGES), folder)
    survey(config.build(FileSettings, {"path": str(folder), "image_size": 8}, "data"))


def _read_model(path: Path, how: Any) -> None:
    predictor = read_model(path)
    x = torch.zeros(2, *predictor.description.shape)
    found = predict(predictor, x.to(getattr(torch, predictor.description.dtype)))
    as_csv(Answers(found, predictor.description, Inputs(x)))


def _read_album(path: Path, how: Any) -> None:
    read_about(path)
    read_album(path)


READERS: dict[str, Callable[[Path, Any], Any]] = {
    "table": _read_table,
    "arrays": _read_arrays,
    "photograph": _read_photograph,
    "checkpoint": lambda path, how: checkpoint.load(path),
    "weights": lambda path, how: read_weights(path, parameter_shapes(1, 1, "small")),
    "album": _read_album,
    "model": _read_model,
    "runs": lambda path, how: find_runs(path.parent if path.suffix == ".jsonl" else path),
    "predictions": lambda path, how: read_predictions(Run(path.parent, [{"event": "start"}])),
    "idx": lambda path, how: read_idx(path),
}
