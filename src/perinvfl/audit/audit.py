"""The audit of one table: evidence on every column, a verdict on each, and what follows for a model."""

import dataclasses
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from perinvfl.audit.habits import Habit, find_habit
from perinvfl.audit.held_out import Objection, find_objection
from perinvfl.audit.meaning import Meaning, meaning_of
from perinvfl.audit.table import MOST_TRIED, AuditColumn, Table, read_table
from perinvfl.audit.verdicts import MOST_CHANCE, Evidence, Verdict, decide
from perinvfl.audit.without import HELD_OUT, ROWS, Change, Tested, Variant, try_variants
from perinvfl.core.tree import Params
from perinvfl.data.own.files import FileSettings
from perinvfl.data.own.rows import BadData, unusable_columns
from perinvfl.learning.ranks import ranks
from perinvfl.learning.slopes import client_sums, zero_sums
from perinvfl.learning.variation import Variation, find_variation

ALL_DROPPED, ALL_TREATED = "all that are to be dropped", "all that are to be dropped or discounted"
HIDDEN = "{} without its habit"
LARGE_PART = 0.3  # of a mixture of length 1
ORDER = {"drop": 0, "discount": 1, "keep": 2}


@dataclass(frozen=True)
class ColumnAudit:
    name: str
    verdict: Verdict
    meaning: Meaning
    habit: Habit | None
    changes: dict[str, Change]  # by test
    hidden: dict[str, Change]
    objection: Objection | None = None  # of the rows held out, to a column that is not to be dropped

    @property
    def doubtful(self) -> bool:
        """It is kept, but the rows held out or the differences between sites speak against it."""
        kept = self.verdict.advice == "keep"
        return kept and (self.objection is not None or self.verdict.reason == "differs by site")


@dataclass(frozen=True)
class Group:
    """A site or a context."""

    name: str
    rows: int
    label: float  # share of the last class, or the mean of a number
    held_out: bool = False


@dataclass(frozen=True)
class Audit:
    file: str
    checksum: str
    label: str
    client: str
    context: str
    task: str
    classes: tuple[str, ...]
    rows: int
    rows_looked_at: int
    sites: list[Group]
    contexts: list[Group]
    columns: list[ColumnAudit]  # those to act on first
    tests: dict[str, Tested]
    noticeable: float | None  # change of a strength between two contexts (or sites) that would mostly be noticed
    seconds: float
    missing: dict[str, int] = field(default_factory=dict)  # cells by column
    left_aside: dict[str, str] = field(default_factory=dict)  # columns that no model can use, and why
    notes: tuple[str, ...] = ()  # how columns were read, and names that may be typing mistakes
    reading: dict[str, Any] = field(default_factory=dict)  # settings by which the file was read, if not the usual ones

    def advised(self, advice: str) -> list[ColumnAudit]:
        return [column for column in self.columns if column.verdict.advice == advice]

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def audit_table(settings: FileSettings) -> Audit:
    began = time.perf_counter()
    try:
        table = read_table(settings)
    except BadData as error:
        names = unusable_columns(error)
        if not names:
            raise
        found = audit_table(dataclasses.replace(settings, ignore=(*settings.ignore, *names)))
        return dataclasses.replace(found, left_aside={**names, **found.left_aside}, reading=_reading(settings))
    evidence = _evidence(table)
    verdicts = {known.name: decide(known) for known in evidence}
    tests = try_variants(table, _together(table, verdicts))
    dropped = tests[ROWS].variants.get(ALL_DROPPED)
    if dropped is not None and dropped.low <= tests[ROWS].constant.mean:  # nothing worth having would be left
        verdicts = {
            name: Verdict("discount", "nothing else is left") if verdict.advice == "drop" else verdict
            for name, verdict in verdicts.items()
        }
    columns = [_column(known, verdicts[known.name]) for known in evidence]
    columns.sort(key=_urgency)
    return Audit(
        file=Path(settings.path).name,
        checksum=settings.checksum,
        label=settings.label,
        client=settings.client,
        context=settings.context,
        task=table.task,
        classes=table.classes,
        rows=table.rows_in_file,
        rows_looked_at=len(table.y),
        sites=_groups(table, table.client, table.clients),
        contexts=_groups(table, table.context, table.contexts) if len(table.contexts) > 1 else [],
        columns=columns,
        tests=tests,
        noticeable=_noticeable(columns),
        seconds=round(time.perf_counter() - began, 2),
        missing={c.name: int(c.values.isnan().sum()) for c in table.columns if bool(c.values.isnan().any())},
        notes=table.notes,
        reading=_reading(settings),
    )


def _reading(settings: FileSettings) -> dict[str, Any]:
    lists = {key: list(getattr(settings, key)) for key in ("features", "ignore", "categories")}
    found = {**lists, "missing_values": dict(settings.missing_values)}
    found |= {} if settings.task == "auto" else {"task": settings.task}
    return {key: value for key, value in found.items() if value}


def _column(known: Evidence, verdict: Verdict) -> ColumnAudit:
    objection = None
    if verdict.advice != "drop":
        objection = find_objection(known.meaning, known.changes.get(HELD_OUT), known.columns)
    return ColumnAudit(known.name, verdict, known.meaning, known.habit, known.changes, known.hidden, objection)


def _urgency(column: ColumnAudit) -> tuple[int, bool, bool, float, float]:
    meaning, calm = column.meaning, column.objection is None
    return ORDER[column.verdict.advice], calm, not column.doubtful, meaning.contexts_chance, meaning.sites_chance


def _evidence(table: Table) -> list[Evidence]:
    variation = find_variation(_sums(table), images=False)
    found = []
    for column in table.columns:
        habit, fine = find_habit(table, column)
        found.append(_known(table, column, variation, habit, meaning_of(table, column, fine)))
    tried = sorted(found, key=_interest)[:MOST_TRIED]
    variants = {}
    for known in tried:
        column = next(column for column in table.columns if column.name == known.name)
        variants[known.name] = Variant(column.places)
        if known.habit is not None:
            variants[HIDDEN.format(known.name)] = _hide(table, column, find_habit(table, column)[1])
    tests = try_variants(table, variants)
    return [
        dataclasses.replace(
            known, changes=_changes(tests, known.name), hidden=_changes(tests, HIDDEN.format(known.name))
        )
        for known in found
    ]


def _known(table: Table, column: AuditColumn, variation: Variation, habit: Habit | None, meaning: Meaning) -> Evidence:
    source = variation.source if set(column.places) & set(variation.columns) else None
    likely = meaning.contexts_chance if source == "contexts" else meaning.sites_chance
    parts = [abs(direction[place]) for direction in variation.directions for place in column.places]
    return Evidence(
        name=column.name,
        meaning=meaning,
        habit=habit,
        # Where values are missing, only those that are there count.
        varies=source if likely < MOST_CHANCE else None,
        mixed=max(parts, default=0.0) > LARGE_PART,
        all_vary=variation.kept,
        columns=len(table.columns),
    )


def _interest(known: Evidence) -> tuple[bool, float, float]:
    """Columns to try a model without come first: suspicious ones, then those that tell most."""
    calm = known.varies is None and known.habit is None and not known.mixed and not known.all_vary
    return calm, min(known.meaning.contexts_chance, known.meaning.sites_chance, 0.01), -abs(known.meaning.overall)


def _changes(tests: dict[str, Tested], name: str) -> dict[str, Change]:
    return {test: found.changes[name] for test, found in tests.items() if name in found.changes}


def _sums(table: Table) -> Params:
    """What `recommended` looks at, of rows that are not held out."""
    seen = table.seen_contexts
    number = torch.tensor([seen.index(k) if k in seen else -1 for k in range(len(table.contexts))])
    outputs = len(table.classes) if table.task == "multiclass" else 1
    total = zero_sums((table.x.shape[1],), outputs, len(seen))
    for client in range(len(table.clients)):
        mine = (table.client == client) & ~table.held
        if bool(mine.any()):
            y = table.y[mine].long() if table.task == "multiclass" else table.y[mine]
            context = number[table.context[mine]]
            x = ranks(table.x[mine], context >= 0)
            own = client_sums(table.task, outputs, len(seen), x, y, context)
            total = {name: total[name] + own[name] for name in total}
    return total


def _hide(table: Table, column: AuditColumn, fine: torch.Tensor) -> Variant:
    """The column with its middle value in the place of the habit, and no sign of it."""
    sign = column.places[-1:] if column.flagged else ()
    if column.category:
        return Variant(sign)
    values = table.x[:, column.places[0]]
    known = values[fine & ~table.held]
    middle = known.median() if len(known) else values.new_zeros(())
    return Variant(sign, {column.places[0]: torch.where(fine, values, middle)})


def _together(table: Table, verdicts: dict[str, Verdict]) -> dict[str, Variant]:
    places = {column.name: column.places for column in table.columns}
    chosen = {
        ALL_DROPPED: [name for name, verdict in verdicts.items() if verdict.advice == "drop"],
        ALL_TREATED: [name for name, verdict in verdicts.items() if verdict.advice != "keep"],
    }
    variants: dict[str, Variant] = {}
    for title, names in chosen.items():
        without = tuple(place for name in names for place in places[name])
        if without and len(without) < table.x.shape[1]:
            variants[title] = Variant(without)
    if len(chosen[ALL_TREATED]) == len(chosen[ALL_DROPPED]):
        variants.pop(ALL_TREATED, None)
    return variants


def _groups(table: Table, group: torch.Tensor, names: tuple[str, ...]) -> list[Group]:
    y = (table.y == len(table.classes) - 1).double() if table.classes else table.y
    found = []
    for number, name in enumerate(names):
        mine = group == number
        found.append(Group(name, int(mine.sum()), float(y[mine].mean()), bool(table.held[mine].all())))
    return found


def _noticeable(columns: list[ColumnAudit]) -> float | None:
    """Found four times out of five: between two contexts of the usual size, or two sites."""
    errors = []
    for column in columns:
        relations = [r for r in column.meaning.contexts if not r.held_out and r.strength is not None]
        if len(relations) < 2:
            relations = [r for r in column.meaning.sites if r.strength is not None]
        errors += [r.error for r in relations] if len(relations) > 1 else []
    if not errors:
        return None
    tails = torch.tensor([1 - MOST_CHANCE / (2 * len(columns)), 0.8], dtype=torch.float64)
    usual = float(torch.tensor(errors).median())
    return float(torch.special.ndtri(tails).sum()) * usual * 2**0.5
