"""A folder of shards: tables or archives of the same form, each of one client or of a group of clients.

Shards are read one after another. What a row holds goes to a file that is mapped into memory, so that memory does not
grow with the rows. The first shard says what the columns, the task and the classes are; every other one must agree.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from perinvfl.core.config import suggest
from perinvfl.core.mapped import MappedRows, let_go
from perinvfl.core.naming import name_of
from perinvfl.data.own import readers
from perinvfl.data.own.rows import BadData, Fault, Found, Rows, decide, in_order
from perinvfl.data.own.stand_ins import mark_missing
from perinvfl.errors import UserError

if TYPE_CHECKING:
    from perinvfl.data.own.files import FileSettings

BLOCK = 2**16  # rows that are looked at together


def read_shards(settings: "FileSettings") -> Rows:
    """The rows of all shards as one; x lies in a file."""
    with MappedRows() as x:
        gathered = _Gathered(settings, x)
        for path in readers.shard_files(Path(settings.path)):
            gathered.add(path)
        return gathered.rows()


@dataclass
class _Gathered:
    """What the shards read so far come to."""

    settings: "FileSettings"
    x: MappedRows
    first: Rows | None = None
    first_path: Path = Path()
    parts: dict[str, list[Tensor]] = field(default_factory=lambda: {"y": [], "client": [], "context": []})
    numbers: dict[str, dict[str, int]] = field(default_factory=lambda: {"client": {}, "context": {}})
    shard_of: dict[str, str] = field(default_factory=dict)  # by client
    levels: list[dict[str, int]] = field(default_factory=list)  # of each feature, as they were met
    met: set[str] = field(default_factory=set)  # of the clients to leave aside
    excluded: int = 0

    def add(self, path: Path) -> None:
        rows = self._read(path)
        if self.first is None:
            self.first, self.first_path = rows, path
            self.levels = [{} for _ in rows.features] if rows.levels else []
        self._check(rows, path)
        aside = [name for name in rows.clients if name in self._left_aside]
        if aside:
            self.met |= set(aside)
            mine = torch.tensor([name not in aside for name in rows.clients])[rows.client]
            self.excluded += int((~mine).sum())
            rows = rows.take(mine)
        self.x.add(self._with_common_levels(rows))
        self.parts["y"].append(rows.y)
        for role, names, numbers in (("client", rows.clients, rows.client), ("context", rows.contexts, rows.context)):
            known = self.numbers[role]
            used = [names[number] for number in numbers.unique().tolist()]
            ours = torch.tensor([known.setdefault(name, len(known)) if name in used else -1 for name in names])
            self.parts[role].append(ours[numbers])

    @property
    def _left_aside(self) -> tuple[str, ...]:
        return tuple(map(name_of, self.settings.exclude_clients))

    def _read(self, path: Path) -> Rows:
        settings, columns, task = self.settings, self.settings.columns, self.settings.task
        classes = tuple(map(name_of, settings.classes))
        if self.first is not None:
            text = [name for place, name in enumerate(self.first.features) if self.first.levels_of(place)]
            columns = columns._replace(categories=tuple(dict.fromkeys((*columns.categories, *text))))
            task, classes = self.first.task, self.first.classes
        found = readers.read(path, columns, settings.image_size, settings.colour)
        found = mark_missing(found, settings.missing_values, columns.gaps)
        if not columns.client or set(found.client) == {readers.ALL}:
            found = _named_by_file(found, path)
        rows, faults = decide(found, task, classes, settings.label)
        hint = (
            "" if settings.classes or task == "regression" else "; unless data.classes names them, the first shard does"
        )
        faults = [Fault(f.where, f.column, f.what + hint) if "class" in f.what else f for f in faults]
        if found.faults or faults:
            raise BadData(str(path), [*found.faults, *faults])
        return rows

    def _check(self, rows: Rows, path: Path) -> None:
        """Refuse what differs from the first shard, and a client of two shards."""
        assert self.first is not None
        first, of_first = self.first, self.first_path.name
        if sorted(rows.features) != sorted(first.features):
            odd = sorted(set(rows.features) ^ set(first.features))[0]
            which = path.name if odd in rows.features else of_first
            raise UserError(f'{path} and {of_first} differ: only {which} has a column "{odd}".')
        if rows.x.shape[1:] != first.x.shape[1:]:
            raise UserError(
                f"{path}: x has rows of shape {list(rows.x.shape[1:])}, and in {of_first} of {list(first.x.shape[1:])}."
            )
        for place, name in enumerate(rows.features):
            if rows.levels_of(place) and not first.levels_of(first.features.index(name)):
                raise UserError(
                    f'{path}: column "{name}" holds text, and in {of_first} numbers; name it in data.categories or in '
                    "data.ignore."
                )
        for name in rows.clients:
            before = self.shard_of.setdefault(name, path.name)
            if before != path.name:
                raise UserError(f'{path}: client "{name}" has rows in {before} too; a client is in one shard only.')

    def _with_common_levels(self, rows: Rows) -> Tensor:
        """x in the order of the first shard's columns, a category's levels by the numbers they got when first met."""
        assert self.first is not None
        x = rows.x.to(self.first.x.dtype)
        if x.ndim != 2 or not rows.features:
            return x
        columns = []
        for place, name in enumerate(self.first.features):
            own = rows.features.index(name)
            column, levels = x[:, own], rows.levels_of(own)
            if levels:
                known = self.levels[place]
                codes = torch.tensor([known.setdefault(level, len(known)) for level in levels], dtype=x.dtype)
                there = ~column.isnan()
                column = torch.where(there, codes[torch.where(there, column, 0).long()], column)
            columns.append(column)
        return torch.stack(columns, 1)

    def rows(self) -> Rows:
        first = self.first
        assert first is not None
        unknown = [name for name in self._left_aside if name not in self.met]
        if unknown:
            names = list(self.numbers["client"])
            raise UserError(f'data.exclude_clients names "{unknown[0]}", no client{suggest(unknown[0], names)}')
        if not self.numbers["client"]:
            raise UserError("data.exclude_clients leaves no client.")
        x = self.x.finish(first.x.shape[1:], first.x.dtype)
        (clients, client), (contexts, context) = (self._in_order(role) for role in ("client", "context"))
        return Rows(
            kind=f"folder of shards ({first.kind})",
            x=x,
            y=torch.cat(self.parts["y"]),
            client=client,
            context=context,
            task=first.task,
            clients=clients,
            contexts=contexts,
            classes=first.classes,
            features=first.features,
            levels=self._order_levels(x),
            missing_values=first.missing_values,
            excluded=self.excluded,
        )

    def _in_order(self, role: str) -> tuple[tuple[str, ...], Tensor]:
        met = self.numbers[role]
        names = in_order(met)
        place = torch.empty(len(names), dtype=torch.int64)
        place[torch.tensor([met[name] for name in names])] = torch.arange(len(names))
        return names, place[torch.cat(self.parts[role])]

    def _order_levels(self, x: Tensor) -> tuple[tuple[str, ...], ...]:
        """As in one file: by size or alphabet. x is changed where it lies."""
        made = []
        for column, met in enumerate(self.levels):
            names = in_order(met)
            made.append(names)
            if list(names) == list(met):
                continue
            place = torch.tensor([names.index(name) for name in met], dtype=x.dtype)
            for block in x.split(BLOCK):
                there = ~block[:, column].isnan()
                codes = place[torch.where(there, block[:, column], 0).long()]
                block[:, column] = torch.where(there, codes, block[:, column])
            let_go()
        return tuple(made)


def _named_by_file(found: Found, path: Path) -> Found:
    """Rows without a column for the client: the shard is one client, called as its file is."""
    return dataclasses.replace(found, client=[path.stem] * len(found.client))
