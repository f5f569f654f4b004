"""The tables of `perinvfl table worlds`: one row for each method over all reported worlds, or one for each world."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perinvfl.errors import UserError
from perinvfl.results.render import Text
from perinvfl.results.worlds import BOUND, Measured, WorldRecords

DASH = "–"
STRENGTHS = {"varies": "strength varies", "same": "same strength everywhere", "none": "no shortcut"}


@dataclass(frozen=True)
class Summary:
    """One method over the reported worlds; None where it ran in none of a kind."""

    method: str
    setting: int | None
    worlds: int  # with a shortcut whose strength varies, scored by accuracy
    shift: float | None  # mean over those of the accuracy under shift, in percent
    to_bound: float | None  # mean over those of what is missing to the bound, in points
    worst_to_bound: float | None
    inside: float | None  # mean over those of the accuracy on held-out data of the training contexts
    same: float | None  # what is missing to the bound where the shortcut is equally strong everywhere
    none: float | None  # and where there is none
    error_ratio: float | None  # error over the bound, mean over the worlds scored by error


def summaries(records: WorldRecords) -> list[Summary]:
    _check(records)
    return [_summary(records, method) for method in records.methods if method not in records.waiting]


def _summary(records: WorldRecords, method: str) -> Summary:
    ran = [world for world in records.worlds if method in records.scores[world]]

    def of_kind(strength: str) -> list[str]:
        return [w for w in ran if records.strength(w) == strength and not records.is_error(w)]

    def mean(worlds: list[str], value: Callable[[str], float | None]) -> float | None:
        found = [number for world in worlds if (number := value(world)) is not None]
        return statistics.fmean(found) if found else None

    def missing(world: str) -> float | None:
        bound = records.bound(world)
        return None if bound is None else bound - records.scores[world][method].shift

    def ratio(world: str) -> float | None:
        bound = records.bound(world)
        return None if bound is None else records.scores[world][method].shift / bound

    varies = of_kind("varies")
    distances = [number for world in varies if (number := missing(world)) is not None]
    return Summary(
        method,
        records.settings[method],
        len(varies),
        mean(varies, lambda world: records.scores[world][method].shift),
        statistics.fmean(distances) if distances else None,
        max(distances, default=None),
        mean(varies, lambda world: records.scores[world][method].inside),
        mean(of_kind("same"), missing),
        mean(of_kind("none"), missing),
        mean([world for world in ran if records.is_error(world)], ratio),
    )


def summary_text(records: WorldRecords) -> Text:
    """One row for each method."""
    made = summaries(records)
    header = ["Method", "Under shift", "To the bound", "Worst to the bound", "In distribution"]
    header += ["Same strength, to the bound", "No shortcut, to the bound", "Error / bound", "Worlds", "Setting"]
    most = max(row.worlds for row in made)
    rows = []
    for row in made:
        numbers = [row.shift, row.to_bound, row.worst_to_bound, row.inside, row.same, row.none]
        ratio = DASH if row.error_ratio is None else f"{row.error_ratio:.2f}"
        setting = DASH if row.setting is None else f"#{row.setting}"
        rows.append([row.method, *map(_number, numbers), ratio, f"{row.worlds} of {most}", setting])
    return Text(f"worlds: accuracy in percent, mean over {most} worlds", header, rows, _notes(records))


def full_text(records: WorldRecords) -> Text:
    """One row for each world."""
    _check(records)
    footnotes: list[str] = []
    methods = [method for method in records.methods if method != BOUND and method not in records.waiting]
    rows = []
    for world in records.worlds:
        form = ".3f" if records.is_error(world) else ".1f"
        bound = records.bound(world)
        cells = [world, STRENGTHS[records.strength(world)], DASH if bound is None else format(bound, form)]
        for method in methods:
            cells.append(_cell(records, world, method, form, footnotes))
        rows.append(cells)
    notes = [
        "Mean over the shifted test contexts, ± over seeds; class-balanced for birds; mean squared error for "
        "structural equations, where the bound is the variance of the noise.",
        *(f"[{number}] {why}" for number, why in enumerate(footnotes, 1)),
    ]
    return Text("worlds: accuracy under shift in percent", ["World", "Shortcut", BOUND, *methods], rows, notes)


def _cell(records: WorldRecords, world: str, method: str, form: str, footnotes: list[str]) -> str:
    own: Measured | None = records.scores[world].get(method)
    if own is not None:
        return format(own.shift, form) + (f" ± {own.deviation:{form}}" if own.seeds > 1 else "")
    why = records.refused.get(method, {}).get(world)
    if why is None:
        return DASH
    if why not in footnotes:
        footnotes.append(why)
    return f"{DASH} [{footnotes.index(why) + 1}]"


def as_json(records: WorldRecords) -> dict[str, Any]:
    return {
        "methods": [vars(row) for row in summaries(records)],
        "worlds": [
            {
                "world": world,
                "shortcut": STRENGTHS[records.strength(world)],
                "measure": "mean squared error" if records.is_error(world) else "accuracy",
                "bound": records.bound(world),
                "scores": {method: vars(own) for method, own in records.scores[world].items()},
                "refused": {m: why[world] for m, why in records.refused.items() if world in why},
            }
            for world in records.worlds
        ],
    }


def _notes(records: WorldRecords) -> list[str]:
    seeds = max(own.seeds for row in records.scores.values() for own in row.values())
    notes = [
        "One setting of each method for all worlds, the one with the best mean accuracy under shift over the chosen "
        f"worlds, so by looking at their test data; here the reported worlds, {seeds} fresh seeds.",
        "To the bound: what is missing to a model trained in the same world without its shortcut, in points. Worlds in "
        "which the shortcut is equally strong everywhere, or absent, have columns of their own and are in no other.",
        "Error / bound: mean squared error in worlds of structural equations over the variance of the noise.",
    ]
    broken = sum(own.broken for row in records.scores.values() for own in row.values())
    if broken:
        notes.append(f"{broken} runs did not stay finite and score as the constant predictor does.")
    nowhere = [world for world, row in records.scores.items() if not row]
    if nowhere:
        notes.append(f"No method could run in {', '.join(nowhere)}; `perinvfl table worlds --full` says why.")
    if records.waiting:
        notes.append(f"Not run in the reported worlds yet: {', '.join(records.waiting)}.")
    for method, refused in records.refused.items():
        reasons = dict.fromkeys(
            why for world, why in refused.items() if world in records.worlds and world not in nowhere
        )
        if reasons:
            notes.append(f"{method} does not run in every world: {' '.join(reasons)}")
    return notes


def _check(records: WorldRecords) -> None:
    if not any(records.scores.values()):
        raise UserError("No reported world has a finished run; `python -m perinvfl.reproduce worlds` makes them.")


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f}"
