"""All rows of all sites as one table: an audit is made where the data may lie together."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.core.config import suggest
from perinvfl.core.seeding import generator
from perinvfl.data.federation import Task
from perinvfl.data.own.files import FileSettings, read_rows
from perinvfl.data.own.fitting import fit_rows
from perinvfl.data.own.notes import suspicions
from perinvfl.data.own.rows import Rows
from perinvfl.errors import UserError

MOST_ROWS, LEAST_ROWS = 20_000, 2_000  # of more, an even share of every context of every site is looked at
WORK = 4e8  # rows times squared columns times models, less than two minutes on one core
MOST_COLUMNS = 200
MOST_TRIED = 30  # columns that a model is trained without


@dataclass(frozen=True)
class AuditColumn:
    """A column of the file, and the columns of `Table.x` that stand for it."""

    name: str
    places: tuple[int, ...]  # of a number first the value, of a category its levels; last, where there is one, the sign
    values: Tensor  # [n] as in the file, NaN where missing; of a category the number of the level
    category: bool = False
    flagged: bool = False  # the last of its places says where it is missing


@dataclass(frozen=True)
class Table:
    x: Tensor  # [n, d] float64, standardised
    y: Tensor  # [n] float64: class numbers, or the label standardised
    client: Tensor  # [n]
    context: Tensor  # [n]
    held: Tensor  # [n] bool: rows of contexts that are only tested on
    task: Task
    clients: tuple[str, ...]
    contexts: tuple[str, ...]
    classes: tuple[str, ...]
    columns: tuple[AuditColumn, ...]
    rows_in_file: int
    label_scale: float = 1.0  # of a regression
    notes: tuple[str, ...] = ()  # what to look at before the table is trusted

    @property
    def targets(self) -> Tensor:
        """[n, C] what columns are related to: the label, or whether a row is of a class."""
        if self.task != "multiclass":
            return self.y[:, None]
        return (self.y[:, None] == torch.arange(len(self.classes))).double()

    @property
    def seen_contexts(self) -> list[int]:
        return self.context[~self.held].unique().tolist()


def read_table(settings: FileSettings) -> Table:
    """Refuses what cannot be audited, in a sentence."""
    rows = read_rows(settings)
    if rows.x.ndim != 2:
        raise UserError("An audit looks at the columns of a table; these data are images or arrays of another shape.")
    if rows.x.shape[1] > MOST_COLUMNS:
        raise UserError(
            f"{rows.x.shape[1]} columns are more than an audit looks at ({MOST_COLUMNS}); name those of interest with "
            "--feature, or leave some aside with --ignore."
        )
    if rows.x.shape[1] < 2:
        raise UserError("There is one column to predict from, so nothing would be left without it.")
    if len(rows.clients) < 2 and len(rows.contexts) < 2:
        raise UserError(
            "There is one site and one context, so nothing can be compared: name the column of the sites with "
            "--client, or of a context such as the year with --context."
        )
    for name in settings.held_out:
        if name not in rows.contexts:
            raise UserError(f'--held-out names "{name}", no context of these data{suggest(name, list(rows.contexts))}')
    kept = rows.take(_even_share(rows.client, rows.context, rows.x.shape[1]))
    held = torch.tensor([name in settings.held_out for name in kept.contexts])[kept.context]
    if bool(held.all()):
        raise UserError("--held-out leaves no context to learn from.")
    if kept.task != "regression" and kept.y[~held].unique().numel() < 2:
        raise UserError("All rows that are not held out have the same label, so there is nothing to learn.")
    return _table(kept, held, settings, len(rows.y), (*rows.notes, *suspicions(rows, settings)))


def _even_share(client: Tensor, context: Tensor, columns: int) -> Tensor:
    """Places of the rows to look at: all, or the same share of every context of every site."""
    most = max(LEAST_ROWS, min(MOST_ROWS, int(WORK / (min(columns, MOST_TRIED) * columns**2))))
    if len(client) <= most:
        return torch.arange(len(client))
    source, cells = generator(0, "audit", "rows"), client * (int(context.max()) + 1) + context
    taken = []
    for cell in cells.unique().tolist():
        mine = (cells == cell).nonzero().flatten()
        share = math.ceil(len(mine) * most / len(client))
        taken.append(mine[torch.randperm(len(mine), generator=source)[:share]])
    return torch.cat(taken).sort().values


def _table(rows: Rows, held: Tensor, settings: FileSettings, rows_in_file: int, notes: tuple[str, ...]) -> Table:
    seen, schema, _ = fit_rows(rows, ~held, settings)
    columns, first = [], 0
    for place, encoding in enumerate(schema.encodings):
        places = tuple(range(first, first + len(encoding.features)))
        values = rows.x[:, place].double()
        columns.append(AuditColumn(encoding.name, places, values, encoding.category, encoding.flagged))
        first += len(places)
    return Table(
        seen.x.double(), seen.y.double(), rows.client, rows.context, held, rows.task, rows.clients, rows.contexts,
        rows.classes, tuple(columns), rows_in_file, schema.label_scale, notes,
    )  # fmt: skip
