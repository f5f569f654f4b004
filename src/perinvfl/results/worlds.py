"""Records of methods in many worlds: what each scored, which setting of a method was chosen, how far the bound is.

A world is a file of `experiments/worlds`; its name, such as images-03-shape, is its family, its number and what it is
about. Methods are chosen on worlds of odd number and reported on those of even number. Never trains.
"""

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from perinvfl.core.shipped import published_places
from perinvfl.core.unpacking import parse_json
from perinvfl.errors import UserError
from perinvfl.results.scores import class_balanced
from perinvfl.results.search_records import setting_of
from perinvfl.runs.event_forms import TEXTS, table_of, text
from perinvfl.runs.records import Run, any_known, lead_scores, mean_known, read_packed

CHOOSING, REPORTED, ABOUT = "choosing.jsonl.xz", "reported.jsonl.xz", "about.json"
BOUND = "Bound"  # the method that is trained in each world without its shortcut
Half = Literal["chosen", "reported"]
Strength = Literal["varies", "same", "none"]


def half_of(world: str) -> Half:
    """
    >>> half_of("images-03-shape"), half_of("tables-10-equal-soft")
    ('chosen', 'reported')
    """
    number = re.fullmatch(r"[a-z]+-(\d+)-[a-z0-9-]+", world)
    if number is None:
        raise UserError(
            f'A world is called by its family, its number and a word, such as images-01-small, not "{world}".'
        )
    return "chosen" if int(number[1]) % 2 else "reported"


def strength_of(data: dict[str, Any]) -> Strength:
    """Whether a shortcut differs in strength between contexts or clients, is the same everywhere, or is not there.

    Only what differs can be told from data as a shortcut: what is the same everywhere may as well be the law.

    >>> strength_of({"benchmark": "rc_mnist", "p_train": [0.9, [0.9, 0.8]]}), strength_of({"p_train": [0.5, 0.5]})
    ('varies', 'none')
    """
    if data.get("shortcut") == "none":
        return "none"
    if "p_train" not in data:
        return "varies"  # structural equations
    rates = {p for entry in data["p_train"] for p in (entry if isinstance(entry, list | tuple) else [entry])}
    if len(rates) > 1:
        return "varies"
    return "none" if rates == {1 / max(data.get("classes", 2), 2)} else "same"


@dataclass(frozen=True)
class Score:
    """What one run scored after its last round: accuracy in percent, class-balanced where a class is rare; or error."""

    shift: float  # mean over the shifted test contexts
    inside: float | None  # on data held out from the clients' own training contexts


def score_of(run: Run) -> Score:
    """A run that did not stay finite scores as the constant predictor does."""
    run = class_balanced(run)
    factor = 1 if run.task == "regression" else 100
    cases = lead_scores(run.evaluations[-1]) if stayed_finite(run) else run.notes["constant"]
    inside = factor * mean_known(cases["validation"]) if any_known(cases.get("validation", ())) else None
    return Score(factor * statistics.fmean(mean_known(cases[case]) for case in run.spectrum), inside)


def stayed_finite(run: Run) -> bool:
    """The models, and their scores: a client's score that is not finite is on record as none at all."""
    if run.broken is not None:
        return False
    scores, constant = lead_scores(run.evaluations[-1]), run.notes["constant"]
    pairs = [pair for case in run.spectrum for pair in zip(scores[case], constant[case], strict=True)]
    return all(score is not None for score, there in pairs if there is not None)


@dataclass(frozen=True)
class Measured:
    """What a method scored in one world, over seeds."""

    shift: float
    deviation: float
    inside: float | None
    seeds: int
    broken: int  # runs that did not stay finite


def measured(runs: Iterable[Run]) -> Measured | None:
    runs = list(runs)
    if not runs:
        return None
    scores = [score_of(run) for run in runs]
    shifts, insides = [score.shift for score in scores], [score.inside for score in scores if score.inside is not None]
    return Measured(
        statistics.fmean(shifts),
        statistics.pstdev(shifts),
        statistics.fmean(insides) if insides else None,
        len(runs),
        sum(not stayed_finite(run) for run in runs),
    )


@dataclass(frozen=True)
class WorldRecords:
    """All that was measured, and why some could not be."""

    choosing: list[Run]  # every setting of every method in the chosen worlds, on one seed
    reported: list[Run]  # the chosen settings in the reported worlds, on fresh seeds
    methods: list[str]  # in the order of the table, the bound first
    refused: dict[str, dict[str, str]]  # method -> world -> why it cannot run there

    @cached_property
    def worlds(self) -> list[str]:
        """The reported ones, also those that every method refuses."""
        refused = {world for why in self.refused.values() for world in why if half_of(world) == "reported"}
        return sorted({run.experiment for run in self.reported} | refused)

    def setting(self, method: str) -> int | None:
        """The setting with the best mean accuracy under shift over the chosen worlds; the first of equals."""
        by_setting: dict[int, list[float]] = {}
        for run in self.choosing:
            if run.method == method and run.task != "regression":
                by_setting.setdefault(setting_of(run), []).append(score_of(run).shift)
        most = max(map(len, by_setting.values()), default=0)
        means = {number: statistics.fmean(found) for number, found in by_setting.items() if len(found) == most}
        return max(sorted(means), key=lambda number: means[number], default=None)

    @cached_property
    def settings(self) -> dict[str, int | None]:
        return {method: self.setting(method) for method in self.methods}

    def runs_of(self, method: str, world: str) -> list[Run]:
        taken = self.settings[method]
        return [r for r in self.reported if (r.method, r.experiment, setting_of(r)) == (method, world, taken)]

    @cached_property
    def scores(self) -> dict[str, dict[str, Measured]]:
        """world -> method -> what it scored; a method that did not run there is left out."""
        found = {
            world: {method: measured(self.runs_of(method, world)) for method in self.methods} for world in self.worlds
        }
        return {
            world: {method: value for method, value in row.items() if value is not None} for world, row in found.items()
        }

    @cached_property
    def waiting(self) -> list[str]:
        """The methods that were neither run in a reported world nor refused by one: nobody has tried them yet."""
        tried = {run.method for run in self.reported} | {method for method, why in self.refused.items() if why}
        return [method for method in self.methods if method not in tried]

    def any_run(self, world: str) -> Run | None:
        return next((run for run in self.reported if run.experiment == world), None)

    def is_error(self, world: str) -> bool:
        run = self.any_run(world)
        return run is not None and run.task == "regression"

    def strength(self, world: str) -> Strength:
        """By the data with their shortcut, so by any run but those of the bound."""
        run = next((r for r in self.reported if r.experiment == world and r.method != BOUND), None)
        return "varies" if run is None else strength_of(run.asked["data"])

    def bound(self, world: str) -> float | None:
        """What is reached without the shortcut; of structural equations the variance of the noise, which is known."""
        known = [noise_variance(run) for run in self.reported if run.experiment == world and _knows_noise(run)]
        if known:
            return statistics.fmean(known)
        own = self.scores[world].get(BOUND)
        return None if own is None else own.shift


def _knows_noise(run: Run) -> bool:
    return "noise_variance" in run.notes


def noise_variance(run: Run) -> float:
    """The error of the best model that is invariant over all contexts."""
    return statistics.fmean(mean_known(run.notes["noise_variance"][case]) for case in run.spectrum)


def worlds_folder(place: Path) -> Path | None:
    """Where the records of worlds lie, if that is what is meant: by name or by folder."""
    return next((folder for folder in published_places(place) if (folder / ABOUT).exists()), None)


def read_worlds(folder: Path) -> WorldRecords:
    try:
        about = parse_json((folder / ABOUT).read_bytes()) if (folder / ABOUT).exists() else {}
        methods, refused = about.get("methods", []), about.get("refused", {})
        if not TEXTS(methods) or not table_of(table_of(text))(refused):
            raise ValueError("no list of methods")
    except (ValueError, AttributeError):
        raise UserError(
            f"{folder / ABOUT} is damaged; `python -m perinvfl.reproduce worlds` writes it again."
        ) from None
    choosing, reported = (read_packed(folder / f) if (folder / f).exists() else [] for f in (CHOOSING, REPORTED))
    return WorldRecords(choosing, reported, methods, refused)
