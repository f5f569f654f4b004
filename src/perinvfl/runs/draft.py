"""A first experiment file for data of one's own, with a comment on every choice: what `perinvfl init` writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perinvfl.core.naming import counted
from perinvfl.core.toml_text import toml_value

SMALL = 20_000  # rows: up to here every step takes all rows of a client
TINY = 2_000  # rows: up to here fewer rounds, because small tables overfit
STEPS, BATCH = 5, 256
L2 = 0.003  # weight of the squared norm: small tables overfit without
DECLARED = {
    "categories": "numbers that are codes: one column per level",
    "missing_values": "numbers that stand for a missing value",
}
MOST_PASSES = 20  # over large data


@dataclass(frozen=True)
class Draft:
    """What is known about the data when the file is written."""

    name: str
    path: str  # as it is to stand in the file
    columns: dict[str, tuple[str, str]]  # label, client, context: the column and why
    task: str
    rows: int
    clients: int
    features: int
    held_out: str = ""  # a context
    why_held_out: str = ""
    ignore: dict[str, str] = field(default_factory=dict)  # columns, and why
    declared: dict[str, Any] = field(default_factory=dict)  # further settings of the data, as they were given
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # said when the file is written, and not part of it


def draft_text(draft: Draft) -> str:
    """The file, as TOML."""
    rounds, batch, pace = _pace(draft)
    width = 16 if draft.features <= 50 else 32
    seeds = "[0, 1, 2]" if draft.rows <= SMALL else "[0]"
    lines = [
        f"# {draft.name}: {draft.rows} rows, {counted(draft.clients, 'client')}, {draft.task}.",
        "# Written by `perinvfl init`; change what you like: `perinvfl list NAME` explains a setting.",
        f"name = {toml_value(draft.name)}",
        f"seeds = {seeds}  # each is a run of every method; a table shows their mean and spread",
        "",
        "[data]",
        'benchmark = "file"',
        f"path = {toml_value(draft.path)}"
        + ("" if Path(draft.path).is_absolute() else "  # relative to this file's folder"),
        *_columns(draft),
        *_held_out(draft),
        *_ignored(draft),
        *(f"{key} = {toml_value(value)}  # {DECLARED[key]}" for key, value in draft.declared.items()),
        *(f"# {remark}" for remark in draft.remarks),
        "",
        "[model]",
        f"hidden = [{width}]  # one hidden layer; [] is a linear model",
        "",
        "[training]",
        f"rounds = {rounds}  # {pace}",
        *([f"batch_size = {batch}  # rows of a client in a step"] if batch else []),
        f"evaluate_every = {max(1, rounds // 10)}",
        "",
        *_methods(draft.task),
    ]
    return "\n".join(lines) + "\n"


def relative_path(data: Path, file: Path) -> str:
    """How a file names data: relative to its own folder where they lie in it, else in full."""
    data, folder = data.absolute(), file.absolute().parent
    return data.relative_to(folder).as_posix() if data.is_relative_to(folder) else data.as_posix()


def _pace(draft: Draft) -> tuple[int, int, str]:
    """Rounds, batch size (0: all rows) and why."""
    if draft.rows <= SMALL:
        rounds = 100 if draft.rows <= TINY else 200
        return rounds, 0, "enough for a table of this size, each step with all rows of a client"
    steps = MOST_PASSES * draft.rows // (draft.clients * BATCH)
    rounds = min(max(steps // STEPS, 100), 1000)
    return (
        rounds,
        BATCH,
        f"about {max(1, round(rounds * STEPS * BATCH * draft.clients / draft.rows))} passes over the rows",
    )


def _columns(draft: Draft) -> list[str]:
    meaning = {"label": "what to predict", "client": "who holds a row", "context": "what changes within a client"}
    return [f"{role} = {toml_value(column)}  # {meaning[role]}; {why}" for role, (column, why) in draft.columns.items()]


def _held_out(draft: Draft) -> list[str]:
    if draft.held_out:
        return [f"test_contexts = [{toml_value(draft.held_out)}]  # used for testing only; {draft.why_held_out}"]
    return [f"# No context is held out: {draft.why_held_out}."]


def _ignored(draft: Draft) -> list[str]:
    if not draft.ignore:
        return []
    return [
        f"ignore = [{', '.join(map(toml_value, draft.ignore))}]",
        *(f"# {c}: {why}" for c, why in draft.ignore.items()),
    ]


def _methods(task: str) -> list[str]:
    """The recommended method and two to compare it with. Their settings suit standardised columns and small tables, so
    that the comparison is fair."""
    rates: dict[str, Any] = {"learning_rate": 0.1, "personal_learning_rate": 0.1}
    if task == "regression":
        rates = dict.fromkeys(rates, 0.01) | {"optimizer": "adam", "personal_optimizer": "adam"}
    shared = {key: value for key, value in rates.items() if not key.startswith("personal")}
    return [
        *_method("recommended", {}, "nothing to set; looks for what changes between contexts and clients"),
        *_method("fedavg", {"local_steps": STEPS, **shared, "l2": L2}, "baseline: one model for all clients"),
        *_method(
            "ditto", {"local_steps": STEPS, **rates, "l2": L2}, "baseline: a model for each client, near the shared one"
        ),
    ][:-1]


def _method(name: str, settings: Mapping[str, Any], words: str) -> list[str]:
    return [
        "[[algorithm]]",
        f"name = {toml_value(name)}  # {words}",
        *(f"{k} = {toml_value(v)}" for k, v in settings.items()),
        "",
    ]
