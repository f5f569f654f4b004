"""What the models of a finished run say about the rows of another labelled file: did they hold up?"""

import dataclasses
from array import array
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from perinvfl.data.encoding import unread
from perinvfl.data.own.files import FileSettings, read_rows
from perinvfl.data.own.fitted import recode
from perinvfl.data.own.rows import Rows
from perinvfl.errors import UserError
from perinvfl.export.module import describe
from perinvfl.runs.loaded import LoadedRun, open_run
from perinvfl.runs.predictions import CONSTANT, VALIDATION, Numbers, Predictions, read_predictions
from perinvfl.runs.records import Run


class Answers(NamedTuple):
    found: Predictions  # of the file, under its name; and of the samples that the run held out for validation
    clients: list[str]  # whose rows these are: the run's own, then those that took no part
    strangers: dict[str, int]  # rows of clients that took no part: the shared model answers
    rows: int
    unanswered: bool  # strangers' rows have no answer, since there is no shared model


def answers_on(run: Run, path: Path) -> Answers:
    """Each row answered by the model of its own client."""
    if run.asked["data"].get("benchmark") != "file":
        raise UserError(
            f'{run.folder} was not trained on a file of your own (data.benchmark = "file"), so its models cannot be '
            "asked about another one."
        )
    opened = open_run(run.folder)
    rows = _rows_like(opened, path)
    strangers = [name for name in rows.clients if name not in opened.clients]
    clients = [*opened.clients, *strangers]
    x = recode(rows, opened.federation.schema.encodings) if opened.federation.schema.encodings else rows.x
    labels, outputs, constant = [], [], []
    for client, name in enumerate(clients):
        own = rows.client == rows.clients.index(name) if name in rows.clients else torch.zeros(len(rows.y)).bool()
        stranger = name in strangers
        if stranger and opened.shared is None:
            own = own & False
        labels.append(_numbers(rows.y[own]))
        if not bool(own.any()):
            outputs.append(_numbers(rows.y[own]))
            constant.append(_numbers(rows.y[own]))
            continue
        _, model = describe(opened, 0 if stranger else client, shared=stranger)
        with torch.no_grad():
            said = torch.cat([model.outputs(part) for part in x[own].float().split(4096)])
        outputs.append(_numbers(said))
        constant.append(_numbers(_constant(opened, None if stranger else client).expand(int(own.sum()), -1)))
    case, federation = path.stem, opened.federation
    lead = "global" if opened.personal is None else "personal"
    found = Predictions(
        federation.task,
        run.evaluations[-1]["round"],
        federation.outputs,
        {case: labels},
        {lead: {case: outputs}, CONSTANT: {case: constant}},
    )
    counts = {name: int((rows.client == rows.clients.index(name)).sum()) for name in strangers}
    return Answers(
        _with_validation(found, run, lead, len(strangers)), clients, counts, len(rows.y), opened.shared is None
    )


def _rows_like(opened: LoadedRun, path: Path) -> Rows:
    """The rows of a file, read as those that the run was trained on; columns that nothing is seen of may be missing."""
    settings, schema = opened.trial.data, opened.federation.schema
    lens = opened.federation.lens
    absent = unread(schema.encodings, [] if lens is None else lens.tolist())
    there = [encoding for encoding in schema.encodings if encoding.name not in absent]
    asked = dataclasses.replace(
        _only_reading(settings, path),
        features=tuple(encoding.name for encoding in there),
        categories=tuple(encoding.name for encoding in there if encoding.category),
        classes=schema.classes,
        task=opened.federation.task,
    )
    rows = read_rows(asked)
    if not absent:
        return rows
    nothing = torch.full((len(rows.y), len(absent)), torch.nan, dtype=rows.x.dtype)
    levels = (*(rows.levels or ((),) * len(rows.features)), *((),) * len(absent))
    features = (*rows.features, *sorted(absent))
    return dataclasses.replace(rows, x=torch.cat([rows.x, nothing], 1), features=features, levels=levels)


def _only_reading(settings: FileSettings, path: Path) -> FileSettings:
    """Another file, no context asked for."""
    kept = {name: getattr(settings, name) for name in ("label", "client", "missing", "image_size", "colour")}
    return FileSettings(path=str(path), context="", **kept)


def _constant(opened: LoadedRun, client: int | None) -> Tensor:
    """[1, outputs] the most frequent class, or the mean, of what a client trained on, or of what all did."""
    federation = opened.federation
    y, context = federation.train.y, federation.train.context
    labels = (y if client is None else y[client])[(context if client is None else context[client]) >= 0]
    if federation.task == "regression":
        return federation.schema.label_mean + federation.schema.label_scale * labels.double().mean().view(1, 1)
    counts = torch.bincount(labels.long(), minlength=federation.classes)
    if federation.task == "binary":
        return torch.where(counts[1] > counts[0], 1.0, -1.0).view(1, 1)
    return torch.nn.functional.one_hot(counts.argmax(), federation.classes).float().view(1, -1)


def _with_validation(found: Predictions, run: Run, lead: str, strangers: int) -> Predictions:
    """With what the run held out, by which a threshold is chosen."""
    before = read_predictions(run)
    if before is None or VALIDATION not in before.labels or found.task == "regression":
        return found
    nobody = [array("f")] * strangers
    labels = {**found.labels, VALIDATION: [*before.labels[VALIDATION], *nobody]}
    own = {**found.of[lead], VALIDATION: [*before.of[lead][VALIDATION], *nobody]}
    return dataclasses.replace(found, labels=labels, of={**found.of, lead: own})


def _numbers(values: Tensor) -> Numbers:
    return array("f", values.flatten().tolist())
