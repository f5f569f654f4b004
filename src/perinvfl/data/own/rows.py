"""Own data as rows: what a reader found in a file or in arrays, and what the labels are taken to mean.

A bad row is a `Fault` that names its place and its column. Nothing is dropped: a single fault keeps the data from being
used, and `perinvfl data check` lists them all.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from perinvfl.core.naming import LONGEST_NAME, is_whole_text, name_of, shortened
from perinvfl.data.federation import Task
from perinvfl.errors import UserError

AskedTask = Literal["auto", "binary", "multiclass", "regression"]
MOST_CLASSES = 20  # whole numbers with more distinct values than this are a quantity, unless the task says otherwise
MISSING = frozenset({"", "na", "n/a", "nan", "null", "?", "<na>", "nat"})
NAMELESS = frozenset({"", "nan", "null"})  # of clients and contexts, one of which may well be called NA


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: where (a line, a row, a file; empty: the whole), in which column, and what."""

    where: str
    column: str
    what: str

    def __str__(self) -> str:
        column = f'column "{shortened(self.column)}"' if self.column else ""
        place = ", ".join(part for part in (shortened(self.where), column) if part)
        what = shortened(self.what, most=1000)
        return f"{place}: {what}" if place else what


TORN = "is no whole text: a character of it is only half there"
IGNORE_IT = "; name it in ignore"  # the end of a fault that is gone when the column is


class BadData(UserError):
    """Data that cannot be used as they are, with everything that is wrong."""

    def __init__(self, name: str, faults: Sequence[Fault]) -> None:
        more = len(faults) - 1
        rest = f" ({more} more fault{'s' if more > 1 else ''}: `perinvfl data check` lists all)" if more else ""
        super().__init__(f"{name}: {faults[0]}{rest}.")
        self.faults = tuple(faults)


def unusable_columns(error: BadData) -> dict[str, str]:
    """Columns to leave aside so that the rest can be used, and why; none where something else is wrong too."""
    names = {
        fault.column: fault.what.removesuffix(IGNORE_IT) for fault in error.faults if fault.what.endswith(IGNORE_IT)
    }
    return names if len(names) == len(error.faults) else {}


class Columns(NamedTuple):
    """Which column is what. No client or no context: an empty name."""

    label: str = "label"
    client: str = "client"
    context: str = "context"
    features: tuple[str, ...] = ()  # empty: all the others,
    ignore: tuple[str, ...] = ()  # but for these
    categories: tuple[str, ...] = ()  # features that are categories even where they are numbers
    gaps: bool = True  # whether a feature may be missing


@dataclass(frozen=True)
class Found:
    """What a reader found, nothing decided yet: n rows, some of them perhaps faulty."""

    kind: str  # "CSV table", ...
    x: Tensor  # [n, ...]; of a table NaN where a value is missing, and the place of a category's level
    labels: list[str] | Tensor  # as they stand: texts, or float64 numbers
    client: list[str]
    context: list[str]
    features: tuple[str, ...]  # names, where x has one axis
    place: Callable[[int], str]  # how a person would call row i
    faults: tuple[Fault, ...] = ()
    faulty: frozenset[int] = frozenset()  # rows of which something is wrong
    named: bool = False  # the labels are names even where they look like numbers
    levels: tuple[tuple[str, ...], ...] = ()  # of each feature that is a category; () of one that is a number
    missing_values: tuple[tuple[float, ...], ...] = ()  # of each feature: numbers that stood for a missing value
    notes: tuple[str, ...] = ()  # what a person should know of how columns were read


@dataclass(frozen=True)
class Rows:
    """Rows that can be used: numbers, and what they are called."""

    kind: str
    x: Tensor  # [n, ...] as in the file; of a table NaN where missing, and the place of a category's level
    y: Tensor  # [n] class numbers, or the quantity itself, float64
    client: Tensor  # [n] int64
    context: Tensor  # [n] int64
    task: Task
    clients: tuple[str, ...]
    contexts: tuple[str, ...]
    classes: tuple[str, ...]
    features: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...] = ()  # of each feature that is a category; () of one that is a number
    missing_values: tuple[tuple[float, ...], ...] = ()  # of each feature: numbers that stood for a missing value
    excluded: int = 0  # rows of clients that were left aside
    notes: tuple[str, ...] = ()  # what a person should know of how columns were read

    def take(self, keep: Tensor) -> "Rows":
        chosen = {name: getattr(self, name)[keep] for name in ("x", "y", "client", "context")}
        return dataclasses.replace(self, **chosen)

    def levels_of(self, column: int) -> tuple[str, ...]:
        return self.levels[column] if self.levels else ()

    def missing_values_of(self, column: int) -> tuple[float, ...]:
        return self.missing_values[column] if self.missing_values else ()


def number_of(text: str) -> float | None:
    """A cell as a number; true and false count as 1 and 0. None where it is none."""
    try:
        value = float(text)
    except ValueError:
        return {"true": 1.0, "false": 0.0}.get(text.strip().lower())
    return None if "_" in text or not math.isfinite(value) else value  # Python would read 1_000


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Distinct names: by size if all are numbers, else by alphabet."""
    distinct = sorted(set(names))
    numbers = [number_of(name) for name in distinct]
    if all(number is not None for number in numbers):
        return tuple(name for _, name in sorted(zip(numbers, distinct, strict=True)))
    return tuple(distinct)


def decide(
    found: Found, task: AskedTask, classes: tuple[str, ...] = (), label: str = "label"
) -> tuple[Rows, list[Fault]]:
    """What the labels mean, and the rows without any fault; the faults of the labels."""
    numbers, texts = _as_numbers(found.labels)
    numbers = [None] * len(texts) if found.named else numbers
    fine = [i for i in range(len(texts)) if i not in found.faulty]
    known = [i for i in fine if texts[i].lower() not in MISSING or texts[i] in classes]
    faults = [Fault(found.place(i), label, "the label is missing") for i in sorted(set(fine) - set(known))]
    decided, mixed = (task, None) if task != "auto" else _guess_task([texts[i] for i in known], numbers, known, classes)
    if mixed is not None:
        odd = known[mixed]
        faults.append(
            Fault(
                found.place(odd),
                label,
                f'"{texts[odd]}" stands among labels that are {"names" if numbers[odd] is not None else "numbers"}; '
                'say what they are with task = "multiclass" or task = "regression"',
            )
        )
    names: tuple[str, ...] = ()
    if decided == "regression":
        wrong = [i for i in known if numbers[i] is None]
        faults += [Fault(found.place(i), label, f'"{texts[i]}" is not a number') for i in wrong]
        values = [0.0 if number is None else number for number in numbers]
    else:
        names = classes or in_order(texts[i] for i in known)
        place = {name: float(number) for number, name in enumerate(names)}
        wrong = [i for i in known if texts[i] not in place]
        choices = ", ".join(names)
        faults += [Fault(found.place(i), label, f'"{texts[i]}" is not one of the classes ({choices})') for i in wrong]
        values = [place.get(text, 0.0) for text in texts]
        right = 2 if decided == "binary" else None
        if len(names) < 2 or (right is not None and len(names) != right):
            wanted = "two classes" if decided == "binary" else "at least two classes"
            faults.append(Fault("", label, f"holds {_counted_classes(names)}, and a {decided} task needs {wanted}"))
    faults += _unfit_names(found, known, {label: texts} if names else {})
    bad = set(found.faulty) | set(range(len(texts))) - set(known) | set(wrong)
    keep = torch.tensor([i for i in range(len(texts)) if i not in bad], dtype=torch.int64)
    clients, contexts = (in_order(names[i] for i in keep.tolist()) for names in (found.client, found.context))
    rows = Rows(
        kind=found.kind,
        x=found.x,
        y=torch.tensor(values, dtype=torch.float64),
        client=_numbered(found.client, clients),
        context=_numbered(found.context, contexts),
        task=decided,
        clients=clients,
        contexts=contexts,
        classes=names,
        features=found.features,
        levels=found.levels,
        missing_values=found.missing_values,
        notes=found.notes,
    )
    return (rows if len(keep) == len(texts) else rows.take(keep)), faults


def _unfit_names(found: Found, rows: list[int], classes: dict[str, list[str]]) -> list[Fault]:
    """The first column, client, context and class whose name no table, figure or record could hold."""
    odd = next((name for name in found.features if _unfit(name)), None)
    faults = [] if odd is None else [Fault("", odd, f"its name {_unfit(odd)}")]
    torn = [place for place, levels in enumerate(found.levels) if not all(map(is_whole_text, levels))]
    faults += [Fault("", found.features[place], f"holds a text that {TORN}{IGNORE_IT}") for place in torn[:1]]
    for what, names in ({"client": found.client, "context": found.context} | classes).items():
        row = next((i for i in rows if _unfit(names[i])), None)
        if row is not None:
            faults.append(Fault(found.place(row), "", f"the name of its {what} {_unfit(names[row])}"))
    return faults


def _unfit(name: str) -> str:
    """What is wrong with a name; empty where nothing is."""
    if len(name) > LONGEST_NAME:
        return f"has {len(name)} characters; at most {LONGEST_NAME} are allowed"
    return "" if is_whole_text(name) else TORN


def _counted_classes(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} classes ({shown})" if len(names) != 1 else f'only one class ("{names[0]}")'


def _as_numbers(labels: list[str] | Tensor) -> tuple[list[float | None], list[str]]:
    if isinstance(labels, Tensor):
        values = labels.double().tolist()
        return [value if math.isfinite(value) else None for value in values], [name_of(value) for value in values]
    texts = [label.strip() for label in labels]
    return [number_of(text) for text in texts], texts


def _guess_task(
    texts: list[str], numbers: list[float | None], rows: list[int], classes: tuple[str, ...]
) -> tuple[Task, int | None]:
    """The task the labels look like, and the place of a label that fits neither names nor numbers."""
    distinct = classes or tuple(set(texts))
    as_classes: Task = "binary" if len(distinct) == 2 else "multiclass"
    values = [numbers[i] for i in rows]
    named = [place for place, value in enumerate(values) if value is None]
    if classes or len(named) == len(values):
        return as_classes, None
    if named:
        few, many = len(named) * 2 <= len(values), [p for p, value in enumerate(values) if value is not None]
        return as_classes, (named[0] if few else many[0])
    whole = all(value is not None and value.is_integer() for value in values)
    return (as_classes if whole and len(distinct) <= MOST_CLASSES else "regression"), None


def _numbered(names: list[str], order: tuple[str, ...]) -> Tensor:
    place = {name: number for number, name in enumerate(order)}
    return torch.tensor([place.get(name, -1) for name in names], dtype=torch.int64)
