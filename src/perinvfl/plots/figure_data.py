"""What a figure shows: finished runs of one benchmark, and the numbers of each kind of figure as plain rows."""

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from perinvfl.core.naming import client_names
from perinvfl.errors import UserError
from perinvfl.results.folds import join_folds
from perinvfl.results.scores import class_balanced, has_groups
from perinvfl.results.table import Table, by_setting, finished_runs, make_table
from perinvfl.runs.records import Event, Run, any_known, mean_known

Values = list[dict[str, Any]]

TITLES = {"rc_mnist": "RC-MNIST", "rc_fmnist": "RC-FMNIST", "waterbird": "WaterBird"}
SHORTCUTS = {"rc_mnist": "colour", "rc_fmnist": "colour", "waterbird": "background"}

# Colours of Okabe & Ito and of Tol, distinct for colour-blind eyes; methods also differ in the shape of their points.
STYLES = {
    "perinvfl": ("#D55E00", "circle"),
    "fedavg": ("#56B4E9", "square"),
    "ditto": ("#0072B2", "triangle-up"),
    "irm": ("#009E73", "diamond"),
    "groupdro": ("#CC79A7", "cross"),
    "pfedme": ("#E69F00", "triangle-down"),
    "ftfa": ("#332288", "triangle-right"),
    "irm_l2": ("#999933", "triangle-left"),
    "irm_ft": ("#882255", "square"),
    "alone": ("#000000", "diamond"),
}
SPARE = (("#44AA99", "circle"), ("#AA4499", "triangle-up"), ("#661100", "cross"), ("#6699CC", "triangle-down"))
SHAPE_ONLY = ("#8C8C8C", "circle")
CONSTANT = ("#595959", "stroke")
WORST, AVERAGE = ("#D55E00", "triangle-down"), ("#0072B2", "circle")

SETTINGS = {"beta": "β, the pull of the personal model", "penalty_weight": "λ, the weight of the invariance penalty"}
IN_TRAINING = "0.9"  # a test case whose shortcut holds as often as in training
MOST_CLIENTS = 8  # that are shown one by one
MOST_METHODS = 6  # that share one panel; of more, each gets its own


@dataclass(frozen=True)
class FigureData:
    """Finished runs of one benchmark, by method, and how each method is drawn."""

    table: Table
    runs: dict[str, list[Run]]  # label -> its seeds
    styles: dict[str, tuple[str, str]]  # label -> colour and shape; the constant predictor last
    when: str = "last round"  # the round that is shown of each run

    @property
    def title(self) -> str:
        return TITLES.get(self.table.benchmark, self.table.name or self.table.benchmark)

    @property
    def measure(self) -> str:
        return "accuracy" if self.table.score == "accuracy" else "class-balanced accuracy"

    @property
    def cases(self) -> list[str]:
        """Test cases along an axis: of a shift in numbers those that are numbers, and not the same on other samples."""
        cases = list(self.table.rows[0].cases)
        return [case for case in cases if is_number(case)] if all(map(is_number, self.table.spectrum)) else cases

    @property
    def clients(self) -> int:
        return next(iter(self.runs.values()))[0].start["clients"]

    @property
    def names(self) -> list[str]:
        """Of the clients."""
        start = next(iter(self.runs.values()))[0].start
        return client_names(start.get("schema", {}).get("clients", ()), start["clients"])

    @property
    def seeds(self) -> int:
        return max(map(len, self.runs.values()))

    @property
    def methods(self) -> list[str]:
        return list(self.runs)

    @property
    def crowded(self) -> bool:
        return len(self.runs) > MOST_METHODS

    @property
    def levels(self) -> dict[str, float]:
        """Horizontal lines to compare with: the constant predictor, and shape only where one run shows it."""
        shape_only = [row.average for row in self.table.rows if self.styles.get(row.method) == SHAPE_ONLY]
        shape_only = shape_only if len(shape_only) == 1 else []
        return {"constant": self.table.rows[0].average, **({"shape_only": shape_only[0]} if shape_only else {})}

    @property
    def shifted(self) -> str:
        cases = self.table.spectrum
        words = cases[0] if len(cases) == 1 else f"{cases[0]} … {cases[-1]}"
        return f"p = {words}" if self.by_strength else words

    @property
    def by_strength(self) -> bool:
        """Whether tests differ in how well the shortcut holds; contexts of own data may be numbers too, as years."""
        return all(map(is_number, self.table.spectrum)) and self.table.benchmark != "file"

    @property
    def test_data(self) -> str:
        return "shifted test data" if self.by_strength else "test data"


def look_at(runs: Sequence[Run], when: str = "last round") -> FigureData:
    kept = [run for run in runs if not run.chooses_only]  # folds serve to choose only
    if runs and not kept:
        raise UserError("Every run here leaves a client out; such runs serve to choose settings and are not shown.")
    kept = join_folds(kept)
    balanced = any(map(has_groups, kept))
    table = make_table(kept, "balanced" if balanced else "accuracy")
    kept = [class_balanced(run) for run in kept]
    if table.errors:
        raise UserError("Figures show accuracy; these runs are regressions, whose errors `perinvfl table` shows.")
    found = by_setting(finished_runs(kept))
    styles = {**styles_of({label: same[0] for label, same in found.items()}), "Constant": CONSTANT}
    return FigureData(table, found, styles, when)


def styles_of(found: dict[str, Run]) -> dict[str, tuple[str, str]]:
    """A colour and a shape for each label, the same for the same algorithm in every figure."""
    styles: dict[str, tuple[str, str]] = {}
    spare = cycle(SPARE)
    for label, run in found.items():
        asked = run.start["asked"]
        style = STYLES.get(asked["algorithm"]["name"])
        if asked["data"].get("grayscale", False):
            styles[label] = SHAPE_ONLY
        else:
            styles[label] = next(spare) if style is None or style in styles.values() else style
    return styles


def label_of(run: Run) -> str:
    return run.start["asked"]["algorithm"]["label"]


def is_search(runs: Iterable[Run]) -> bool:
    """Whether these are trials of a search, labelled such as "PerInvFL #12"."""
    return any(_trial(label_of(run)) for run in runs)


def _trial(label: str) -> re.Match[str] | None:
    return re.fullmatch(r"(?P<method>.+) #(?P<number>\d+)", label)


def _lead(event: Event) -> dict[str, list[float]]:
    """The personal models where there are any, else the global one."""
    return event.get("personal") or event["global"]


def _spread(values: Sequence[float]) -> dict[str, float]:
    mean, deviation = statistics.fmean(values), statistics.pstdev(values)
    return {"accuracy": mean, "low": mean - deviation, "high": mean + deviation}


def spectrum_values(figure: FigureData) -> Values:
    """The table's numbers, one row per method and test case."""
    values = []
    for row in figure.table.rows:
        method = row.method.removesuffix(", paper") if row.kind == "paper" else row.method
        for case in (case for case in figure.cases if case in row.cases):
            mean, deviation = row.cases[case]
            values.append(
                {
                    "method": method,
                    "source": {"paper": "the paper", "measured": "measured"}.get(row.kind, "reference"),
                    "case": case,
                    **({"p": float(case)} if is_number(case) else {}),
                    "accuracy": mean,
                    "low": mean - deviation,
                    "high": mean + deviation,
                    **figure.levels,
                }
            )
    return values


def learning_values(figure: FigureData) -> Values:
    """Accuracy by round, over the shifted cases and in distribution; rounds that every seed has evaluated."""
    shifted, beyond = figure.table.spectrum, figure.table.beyond
    panels = {f"{figure.test_data.capitalize()}: mean over {figure.shifted}": shifted}
    if beyond:
        case = IN_TRAINING if IN_TRAINING in beyond else beyond[0]
        panels[f"Test data as in training: p = {case}" if case == IN_TRAINING else f"Test data at {case}"] = (case,)
    values = []
    for method, runs in figure.runs.items():
        by_round = [{event["round"]: _lead(event) for event in run.evaluations} for run in runs]
        rounds = sorted(set.intersection(*map(set, by_round)))
        for panel, cases in panels.items():
            for round in rounds:
                if not all(any_known(row) for run in by_round for row in _of(run[round], cases)):
                    continue  # who has samples of them was away in this round
                seeds = [100 * statistics.fmean(map(mean_known, _of(run[round], cases))) for run in by_round]
                values.append({"method": method, "panel": panel, "round": round, **_spread(seeds), **figure.levels})
    constant = figure.table.rows[0].cases
    last = max(value["round"] for value in values)
    for panel, cases in panels.items():
        level = statistics.fmean(constant[case][0] for case in cases)
        values += [{"method": "Constant", "panel": panel, "round": end, **_spread([level])} for end in (0, last)]
    return values


def _of(scores: dict[str, list[float]], cases: Sequence[str]) -> list[list[float]]:
    return [scores[case] for case in cases]


def client_values(figure: FigureData) -> Values:
    """Accuracy of each client over the spectrum, last round."""
    spectrum = figure.table.spectrum
    values = []
    constants: dict[str, list[float]] = next(iter(figure.runs.values()))[0].start["notes"]["constant"]
    by_client = list(zip(*_of(constants, spectrum), strict=True))
    for method, runs in figure.runs.items():
        last = [_of(_lead(run.evaluations[-1]), spectrum) for run in runs]  # [seed][case][client]
        for client, constant in enumerate(by_client):
            if not any_known(constant):
                continue  # a client without a sample of any of these cases
            known = [row for of_seed in last if any_known(row := [scores[client] for scores in of_seed])]
            if not known:
                continue  # a site that was away
            seeds = [100 * mean_known(row) for row in known]
            name, level = figure.names[client], 100 * mean_known(constant)
            values.append({"method": method, "client": name, **_spread(seeds), "constant": level})
    return values


def sensitivity_values(figure: FigureData) -> Values:
    """Average and worst case of every trial, last round, with each setting that its method uses."""
    rows = {row.method: row for row in figure.table.rows if row.kind == "measured"}
    values: Values = []
    for label, runs in figure.runs.items():
        trial, asked = _trial(label_of(runs[0])), runs[0].start["asked"]["algorithm"]
        for field in SETTINGS if trial else ():
            setting = asked.get(field)
            unused = field == "penalty_weight" and asked.get("invariance") == "groupdro"
            if isinstance(setting, int | float) and setting > 0 and not unused and trial:
                common = {"trial": label, "method": trial["method"], "field": field, "setting": setting}
                for measure, accuracy in (("Average", rows[label].average), ("Worst case", rows[label].worst)):
                    values.append({**common, "measure": measure, "accuracy": accuracy, **figure.levels})
    drawn: dict[tuple[str, str], set[float]] = {}
    for value in values:
        drawn.setdefault((value["method"], value["field"]), set()).add(value["setting"])
    return [value for value in values if len(drawn[value["method"], value["field"]]) > 1]


def is_number(case: str) -> bool:
    try:
        return math.isfinite(float(case))
    except ValueError:
        return False
