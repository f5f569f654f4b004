"""Each row of a table predicted by the model of its own client."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from perinvfl.core.config import suggest
from perinvfl.core.naming import shortened
from perinvfl.data.own import readers
from perinvfl.data.own.inputs import Inputs
from perinvfl.data.own.rows import Fault
from perinvfl.errors import UserError
from perinvfl.export.inputs import read_input, usable_part
from perinvfl.export.labelled import as_spelt, rows_by_client
from perinvfl.export.module import describe
from perinvfl.export.predict import Answers, predict
from perinvfl.export.predictor import Predictor
from perinvfl.runs.loaded import LoadedRun


def answers_by_client(opened: LoadedRun, path: Path, id: str, column: str) -> Answers:
    """column: it names the client of each row. Rows of clients that took no part: by the shared model, or by nobody."""
    if path.suffix.lower() not in readers.TABLES:
        raise UserError(f"--client-column names a column of a table; {path} is none.")
    described = describe(opened, 0, shared=opened.personal is None)[0]
    inputs, cells = read_input(path, described, id), readers.table_cells(path, [column])
    if column not in cells.header:
        raise UserError(f'{path} has no column "{column}"{suggest(column, cells.header)}')
    clients = as_spelt(readers.names_of(cells.columns[column]), opened.clients)
    strangers = {name: len(own) for name, own in rows_by_client(clients).items() if name not in opened.clients}
    notes = strangers_in_words(strangers)
    if opened.shared is None:
        why = "its client took no part in training, and there is no shared model"
        gone = {row: Fault(cells.places[row], column, why) for row, name in enumerate(clients) if name in strangers}
        inputs, notes = dataclasses.replace(inputs, unusable=tuple(sorted((gone | dict(inputs.unusable)).items()))), ()
    usable_part(inputs, path)  # refuses a file without any
    return Answers(_by_client(opened, inputs, clients), described, inputs, notes)


def strangers_in_words(strangers: dict[str, int], alone: Sequence[str] = ()) -> tuple[str, ...]:
    """strangers: rows of clients that took no part in training. alone: methods without a shared model."""
    if not strangers:
        return ()
    listed = ", ".join(f"{shortened(name)} ({count} rows)" for name, count in strangers.items())
    without = f"; {', '.join(alone)} has none and is scored without these rows" if alone else ""
    return (f"Clients that took no part in training: {listed}. The shared model answers for them{without}.",)


def _by_client(opened: LoadedRun, inputs: Inputs, clients: list[str]) -> dict[str, Tensor]:
    """Answers by name, in the order of the rows that can be used."""
    usable = inputs.usable
    parts: dict[str, list[Tensor]] = {}
    order: list[int] = []
    for name, places in rows_by_client([clients[row] for row in usable]).items():
        known = name in opened.clients
        model = Predictor(*describe(opened, opened.clients.index(name) if known else 0, shared=not known))
        for key, answers in predict(model, inputs.x[[usable[place] for place in places]]).items():
            parts.setdefault(key, []).append(answers)
        order += places
    back = torch.tensor(order).argsort()
    return {key: torch.cat(answers)[back] for key, answers in parts.items()}
