"""Labelled rows of another file, read as a run reads its own: what a model takes, the label, and whose row it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from perinvfl.core.config import suggest
from perinvfl.core.naming import name_of
from perinvfl.data.own import readers
from perinvfl.data.own.files import FileSettings, read_rows
from perinvfl.data.own.fitted import recode
from perinvfl.data.own.rows import BadData, Found, decide, number_of
from perinvfl.errors import UserError
from perinvfl.export.inputs import read_input
from perinvfl.export.module import describe
from perinvfl.runs.loaded import LoadedRun


class Labelled(NamedTuple):
    x: Tensor  # [n, ...] as a deployed model takes it
    y: Tensor  # [n] class numbers, or the quantity in its own unit
    client: list[str]  # [n]


def labelled_rows(opened: LoadedRun, path: Path) -> Labelled:
    """A row that cannot be used is refused: without it the scores would be of other rows."""
    if path.is_file() and path.suffix.lower() in readers.TABLES:
        return _of_table(opened, path)
    settings: FileSettings = opened.trial.data
    kept = {name: getattr(settings, name) for name in ("label", "client", "missing", "image_size", "colour")}
    schema, task = opened.federation.schema, opened.federation.task
    rows = read_rows(FileSettings(path=str(path), context="", classes=schema.classes, task=task, **kept))
    x = recode(rows, schema.encodings) if schema.encodings else rows.x
    x = x if x.dtype == torch.uint8 else x.float()
    return Labelled(x, rows.y, [rows.clients[number] for number in rows.client.tolist()])


def _of_table(opened: LoadedRun, path: Path) -> Labelled:
    """Inputs as `predict` reads them, and beside them the columns of the label and of the client."""
    settings: FileSettings = opened.trial.data
    cells = readers.whole_table(path, names=(settings.client,))
    for role, name in (("label", settings.label), ("client", settings.client)):
        if name and name not in cells.header:
            raise UserError(f'{path} has no column "{name}", the {role}{suggest(name, cells.header)}')
    inputs = read_input(path, describe(opened, 0, shared=opened.personal is None)[0])
    if inputs.unusable:
        raise BadData(str(path), [fault for _, fault in inputs.unusable])
    schema, task = opened.federation.schema, opened.federation.task
    clients = readers.names_of(cells.columns[settings.client]) if settings.client else [readers.ALL] * len(cells.places)
    labels = cells.columns[settings.label]
    found = Found(
        kind=cells.kind,
        x=torch.zeros(len(cells.places), 1),
        labels=labels if task == "regression" else as_spelt(readers.names_of(labels), schema.classes),
        client=as_spelt(clients, opened.clients) if settings.client else opened.clients[:1] * len(cells.places),
        context=[readers.ALL] * len(cells.places),
        features=("x",),
        place=lambda row: cells.places[row],
    )
    rows, faults = decide(found, task, schema.classes, settings.label)
    if faults:
        raise BadData(str(path), faults)
    return Labelled(inputs.x, rows.y, [rows.clients[number] for number in rows.client.tolist()])


def rows_by_client(clients: Sequence[str]) -> dict[str, list[int]]:
    """The rows of each client, in their order.

    >>> rows_by_client(["north", "south", "north"])
    {'north': [0, 2], 'south': [1]}
    """
    found: dict[str, list[int]] = {}
    for row, name in enumerate(clients):
        found.setdefault(name, []).append(row)
    return found


def as_spelt(names: list[str], known: Sequence[str]) -> list[str]:
    """Numbers as the run spells them, where all that it knows are numbers: 1.0 may be its 1."""
    numbers = {number_of(name): name for name in known}
    if None in numbers:
        return names
    return [numbers.get(number_of(name), name_of(name)) for name in names]
