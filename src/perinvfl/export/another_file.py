"""What the models of a finished run say about the rows of another labelled file: did they hold up?"""

import dataclasses
from array import array
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from perinvfl.errors import UserError
from perinvfl.export.labelled import labelled_rows, rows_by_client
from perinvfl.export.module import describe
from perinvfl.runs.loaded import LoadedRun, open_run
from perinvfl.runs.predictions import CONSTANT, VALIDATION, Numbers, Predictions, read_predictions
from perinvfl.runs.records import Run


class OnFile(NamedTuple):
    """What a run's models say about a file."""

    case: str  # what the file is called in `found`
    found: Predictions  # of the file, and of the samples that the run held out for validation
    clients: list[str]  # whose rows these are: the run's own, then those that took no part
    rows: int  # in the file
    strangers: dict[str, int]  # rows of clients that took no part: the shared model answers
    unanswered: bool  # strangers' rows have no answer, since there is no shared model


def answers_on(run: Run, path: Path) -> OnFile:
    """Each row answered by the model of its own client."""
    data = run.asked["data"]
    if data.get("benchmark") != "file":
        raise UserError(
            f'{run.folder} was not trained on a file of your own (data.benchmark = "file"), so its models cannot be '
            "asked about another one."
        )
    if data.get("partition"):
        raise UserError(f"{run.folder} was trained by made-up clients (data.partition): no row of a file is theirs.")
    if data.get("leave_one_context_out"):
        raise UserError(
            f"{run.folder} leaves out one context after another, and each fold has models of its own; train without "
            "data.leave_one_context_out to ask them about another file."
        )
    opened = open_run(run.folder)
    federation = opened.federation
    rows = labelled_rows(opened, path)
    places = rows_by_client(rows.client)
    strangers = {name: len(own) for name, own in places.items() if name not in opened.clients}
    clients, unanswered = [*opened.clients, *strangers], opened.shared is None
    labels, outputs, constant = [], [], []
    for number, name in enumerate(clients):
        stranger = name in strangers
        own = [] if stranger and unanswered else places.get(name, [])
        labels.append(_numbers(rows.y[own]))
        outputs.append(_said(opened, None if stranger else number, rows.x[own]))
        usual = _constant(opened, None if stranger else number)
        constant.append(_numbers(usual.expand(len(own), -1)))
    case = path.name if path.stem == VALIDATION else path.stem
    lead = "global" if opened.personal is None else "personal"
    last = run.evaluations[-1]["round"]
    of = {lead: {case: outputs}, CONSTANT: {case: constant}}
    found = Predictions(federation.task, last, federation.outputs, {case: labels}, of)
    found = _with_validation(found, run, lead, len(strangers))
    return OnFile(case, found, clients, len(rows.y), strangers, unanswered and bool(strangers))


def _said(opened: LoadedRun, client: int | None, x: Tensor) -> Numbers:
    """What a client's model, or the shared one, puts out."""
    if not len(x):
        return array("f")
    _, model = describe(opened, client or 0, shared=client is None)
    with torch.no_grad():
        return _numbers(torch.cat([model.outputs(part) for part in x.split(4096)]))


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
