"""The numbers of a diagnosis, client by client."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.naming import class_names, context_names
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks import heart_disease, plain_digits
from perinvfl.data.federation import Split, Task
from perinvfl.data.own.files import SAME
from perinvfl.diagnose import measures, words
from perinvfl.diagnose.columns import LEAST_SAMPLES, Column, Samples, look_at_columns, relations
from perinvfl.learning import risks
from perinvfl.runs.loaded import LoadedRun, open_run

FAMILIAR = (SAME, heart_disease.OWN, plain_digits.OWN)  # tests on rows held out at random


@dataclass(frozen=True)
class Context:
    """How one client's model fares in one context."""

    name: str
    seen: bool  # a context of its training
    samples: int
    risk: float  # mean loss
    score: float  # accuracy; mean squared error for regression
    calibration: float
    overconfidence: float
    penalty: float  # IRMv1
    familiar: bool = False  # rows that were not trained on, from the contexts of its training


@dataclass(frozen=True)
class Shift:
    """What would happen under a stronger shift, by one way of imagining it."""

    way: str  # "contexts", "spectrum" or "columns"
    assumed: str
    now: float  # score in the worst context, or the mean over contexts for "columns"
    then: float


@dataclass(frozen=True)
class Hint:
    """From samples that the reference model gets wrong; a hint and no evidence."""

    share_wrong: float
    also_wrong: float  # of those, the share this client's own model gets wrong too
    column: str | None = None  # the column whose relation with the label turns most between right and wrong
    right: float = 0.0
    wrong: float = 0.0


@dataclass(frozen=True)
class ClientDiagnosis:
    client: str
    personal: bool  # it predicts with a model of its own
    held_out: bool  # every seen context is measured on validation data, not on training data
    contexts: list[Context]
    gap_seen: float | None  # largest less smallest risk over the contexts of training; None where there is only one
    gap: float | None  # the same over all contexts, those of the test included
    penalty: float  # mean IRMv1 penalty over the contexts of training
    agreement: float | None  # with the global model, mean over contexts
    columns: list[Column]
    shifts: list[Shift]
    hint: Hint | None
    sentences: dict[str, str] = field(default_factory=dict)

    @property
    def shortcuts(self) -> list[Column]:
        return [column for column in self.columns if column.shortcut]


@dataclass(frozen=True)
class Diagnosis:
    run: str
    label: str
    benchmark: str
    task: Task
    clients: list[ClientDiagnosis]
    summary: list[str]

    def as_json(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        for client, own in zip(plain["clients"], self.clients, strict=True):
            client["shortcuts"] = [column.name for column in own.shortcuts]
        return plain


def diagnose(place: Path) -> Diagnosis:
    opened = open_run(place)
    with torch.no_grad():
        clients = [diagnose_client(opened, client) for client in range(opened.federation.clients)]
    described = [dataclasses.replace(client, sentences=words.say(client, opened.federation.task)) for client in clients]
    trial = opened.trial
    summary = words.summarise(described)
    return Diagnosis(trial.id, trial.title, opened.federation.name, opened.federation.task, described, summary)


def samples_of(opened: LoadedRun, client: int, all_rows: bool = False) -> tuple[list[Samples], bool]:
    """The client's data by context, seen ones first, then those of the test; whether all seen ones are held out.

    Seen ones as held out for validation where there are enough, since a model is better on what it was trained on; or
    all rows of them, to look at relations that need many.
    """
    federation = opened.federation
    names = context_names(federation.schema.contexts, federation.contexts)
    seen, held_out = [], not all_rows
    for k in federation.train.context[client].unique().tolist():
        if k < 0:
            continue
        rows = [_rows_of(split, client, k) for split in (federation.validation, federation.train) if split is not None]
        enough = federation.validation is not None and len(rows[0][1]) >= LEAST_SAMPLES and not all_rows
        held_out = held_out and enough
        x, y = rows[0] if enough else tuple(map(torch.cat, zip(*rows, strict=True)))
        seen.append(Samples(names[k], True, x, y))
    taken = {part.context for part in seen}
    tests = [
        _whole(f"{name} (test)" if name in taken else name, split, client, name in taken or name in FAMILIAR)
        for name, split in federation.tests.items()
    ]
    return [*seen, *(part for part in tests if len(part.y))], held_out


def _rows_of(split: Split, client: int, context: int) -> tuple[Tensor, Tensor]:
    mask = split.context[client] == context
    return split.x[client][mask], split.y[client][mask]


def _whole(name: str, split: Split, client: int, familiar: bool) -> Samples:
    real = split.context[client] >= 0
    return Samples(name, False, split.x[client][real], split.y[client][real], familiar)


def diagnose_client(opened: LoadedRun, client: int) -> ClientDiagnosis:
    federation, params = opened.federation, opened.lead(client)
    task = federation.task
    (parts, held_out), (whole, _) = samples_of(opened, client), samples_of(opened, client, all_rows=True)
    logits = [opened.predict(params, part.x) for part in parts]
    contexts = [_context(task, part, z) for part, z in zip(parts, logits, strict=True)]
    seen = [context for context in contexts if context.seen]
    shared = None if opened.shared is None else [opened.predict(opened.shared, part.x) for part in parts]
    alike = None
    if shared is not None and opened.personal is not None:
        alike = _mean([measures.agreement(task, own, other) for own, other in zip(logits, shared, strict=True)])
    source = generator(opened.trial.seed, "diagnosis", client)
    columns: list[Column] = []
    names = list(federation.schema.features) or [f"x{k + 1}" for k in range(federation.shape[-1])]
    if len(federation.shape) == 1:
        classes = class_names(federation.schema.classes, max(2, federation.outputs))
        columns = look_at_columns(task, opened.model, params, whole, names, classes, source)
    shifts = _shifts(opened, client, contexts, whole, [c for c in columns if c.shortcut], names, source)
    only_one = len(seen) == 1
    return ClientDiagnosis(
        client=opened.clients[client],
        personal=opened.personal is not None,
        held_out=held_out,
        contexts=contexts,
        gap_seen=None if only_one else _spread([context.risk for context in seen]),
        gap=_spread([context.risk for context in contexts]) if len(contexts) > 1 else None,
        penalty=_mean([context.penalty for context in seen]),
        agreement=alike,
        columns=columns,
        shifts=shifts,
        hint=_hint(opened, client, whole[0], columns, names) if only_one else None,
    )


def _context(task: Task, part: Samples, logits: Tensor) -> Context:
    return Context(
        name=part.context,
        seen=part.seen,
        samples=len(part.y),
        risk=float(risks.losses(task, logits, part.y).mean()),
        score=_score(task, logits, part.y),
        calibration=measures.calibration_error(task, logits, part.y),
        overconfidence=measures.overconfidence(task, logits, part.y),
        penalty=measures.penalty(task, logits, part.y),
        familiar=part.familiar,
    )


def _score(task: Task, logits: Tensor, y: Tensor) -> float:
    return float(risks.measure(task, logits, y, torch.zeros(len(y), dtype=torch.int64)))


def _shifts(
    opened: LoadedRun,
    client: int,
    contexts: list[Context],
    parts: list[Samples],
    shortcuts: list[Column],
    names: list[str],
    source: torch.Generator,
) -> list[Shift]:
    task = opened.federation.task
    error = task == "regression"
    worst = max if error else min
    shifts = []
    scores = [context.score for context in contexts]
    if len(contexts) > 1:
        then = measures.twice_as_far(scores, larger_is_worse=error)
        assumed = "contexts that differ from their mean twice as much as these do"
        shifts.append(Shift("contexts", assumed, worst(scores), then if error else max(0.0, then)))
    places = {context.name: context.score for context in contexts if context.name in opened.federation.spectrum}
    if len(places) >= 3 and all(map(_is_number, places)):
        numbers = [float(name) for name in places]
        place, then = measures.one_step_further(numbers, list(places.values()), larger_is_worse=error)
        assumed = f"a straight line over the test contexts, continued to {place:g}"
        shifts.append(Shift("spectrum", assumed, worst(places.values()), max(0.0, then if error else min(1.0, then))))
    if shortcuts:
        chosen = [names.index(column.name) for column in shortcuts]
        seen = [part for part in parts if part.seen]
        turned = [measures.reverse_columns(task, part.x, part.y, chosen, source) for part in seen]
        usable = [(part, x) for part, x in zip(seen, turned, strict=True) if x is not None]
        params = opened.lead(client)
        if usable:
            now = _mean([_score(task, opened.predict(params, part.x), part.y) for part, _ in usable])
            then = _mean([_score(task, opened.predict(params, x), part.y) for part, x in usable])
            listed = ", ".join(column.name for column in shortcuts)
            assumed = f"{listed} taken from samples of another class in the training contexts"
            shifts.append(Shift("columns", assumed, now, then))
    return shifts


def _hint(opened: LoadedRun, client: int, part: Samples, columns: list[Column], names: list[str]) -> Hint | None:
    """What the samples a reference model gets wrong have in common; the global model, else the client's own."""
    task = opened.federation.task
    if task == "regression":
        return None
    own = opened.predict(opened.lead(client), part.x)
    reference = own if opened.shared is None else opened.predict(opened.shared, part.x)
    right = _right(task, reference, part.y)
    if not 0 < int((~right).sum()) < len(part.y):
        return None
    also = float((~_right(task, own, part.y))[~right].float().mean())
    share = float((~right).float().mean())
    leaned = [column.name for column in columns if column.leans]
    groups = [Samples(name, True, part.x[mask], part.y[mask]) for name, mask in (("right", right), ("wrong", ~right))]
    if not leaned or min(len(group.y) for group in groups) < LEAST_SAMPLES:
        return Hint(share, also)
    by_column = {name: relations(task, groups, names.index(name))[0] for name in leaned}
    by_column = {name: relation for name, relation in by_column.items() if len(relation) == 2}
    if not by_column:
        return Hint(share, also)
    most = max(by_column, key=lambda name: abs(by_column[name]["right"] - by_column[name]["wrong"]))
    return Hint(share, also, most, by_column[most]["right"], by_column[most]["wrong"])


def _right(task: Task, logits: Tensor, y: Tensor) -> Tensor:
    return logits.argmax(1) == y if task == "multiclass" else (logits[:, 0] > 0) == (y > 0.5)


def _spread(values: list[float]) -> float:
    return max(values) - min(values)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
