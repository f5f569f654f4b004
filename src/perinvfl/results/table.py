"""Tables from records: the paper's layout, the paper's rows and the constant predictor beside ours. Never trains."""

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perinvfl.core.naming import counted
from perinvfl.errors import UserError
from perinvfl.learning.groups import Score
from perinvfl.results.folds import join_folds
from perinvfl.results.paper import CASES, published_row
from perinvfl.results.score_names import MEASURES
from perinvfl.results.scores import check_score, constant_of, global_average, has_groups, measured_at
from perinvfl.results.search_records import SearchRecords
from perinvfl.results.selection import Rule, rule_named
from perinvfl.runs.records import Run, unscored

FEW_MARK = "*"  # few samples of a class
TITLES = {name: measure.title for name, measure in MEASURES.items()} | {"worst-group": "worst-group accuracy"}


@dataclass(frozen=True)
class Row:
    """One method: accuracy in percent (a regression's error) by test case, mean and deviation over seeds."""

    method: str
    kind: Literal["measured", "reference", "paper"]
    cases: dict[str, tuple[float, float]]  # every test case, the spectrum and beyond
    spectrum: tuple[str, ...]
    worst_client: float | None = None  # mean over the spectrum at the client that fares worst
    seeds: int = 1
    paper_average: float | None = None
    rounds: tuple[int, ...] = ()  # the round a selection rule took of each seed
    errors: bool = False  # the numbers are errors: smaller is better
    last_round: float | None = None  # average at the last round, of the setting the rule takes by its last round
    by_group: dict[str, float] | None = None  # further columns of a benchmark with groups, in percent
    of_global: float | None = (
        None  # average of the global model of the same runs at the same round, beside personal ones
    )
    benchmark: str = ""  # where a table holds several
    score: str = "accuracy"  # what the cases show
    # Of scores from predictions: bootstrap intervals over samples, and cases with few samples of a class at a client.
    intervals: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    few: tuple[str, ...] = ()

    @property
    def values(self) -> list[float]:
        return [self.cases[case][0] for case in self.spectrum]

    @property
    def average(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """Over the cases, as in the paper's last column (population)."""
        return statistics.pstdev(self.values)

    @property
    def worst(self) -> float:
        return max(self.values) if self.errors else min(self.values)


@dataclass(frozen=True)
class Table:
    benchmark: str
    rows: list[Row]
    spectrum: tuple[str, ...]
    beyond: tuple[str, ...]  # other test cases, such as those in distribution
    rule: str  # how settings and rounds were chosen
    notes: list[str]
    name: str = ""  # what to call it, where that is not the benchmark

    @property
    def score(self) -> str:
        """What the cases show; where it differs between rows, each says so."""
        shown = {row.score for row in self.rows}
        return shown.pop() if len(shown) == 1 else "accuracy"

    @property
    def errors(self) -> bool:
        return any(row.errors for row in self.rows)

    @property
    def title(self) -> str:
        known = MEASURES.get(self.score)
        measure = TITLES[self.score] + (" in percent" if known is None or known.percent else "")
        if self.errors and self.score == "accuracy":
            measure = "mean squared error"
        own = self.benchmark in ("file", "sites")
        shift = "p_test" if not own and all(_is_share(name) for name in self.spectrum) else "context"
        return f"{self.name or self.benchmark}: {measure} by {shift}"


def make_table(runs: list[Run], score: Score = "accuracy") -> Table:
    """One row for each method, in the order of the experiment file, from the last round of every finished run."""
    runs = join_folds(runs)
    finished = finished_runs(runs)
    first = finished[0]
    check_score(finished, score)
    spectrum = tuple(first.spectrum)
    rows = [constant_row(finished, spectrum, score)]
    for label, same in by_setting(finished).items():
        rows += _method_rows(label, same, spectrum, score=score)
    beyond = tuple(case for case in rows[0].cases if case not in spectrum)
    notes = [spread_note(finished, spectrum)]
    if first.task == "regression" and first.asked["data"].get("standardise"):
        notes.append("Errors are in units of the label's variance in training.")
    notes += left_out_notes(runs)
    notes += _group_notes(rows)
    return Table(first.benchmark, rows, spectrum, beyond, "last round", notes, name=own_name(first))


def own_name(run: Run) -> str:
    """Own data are called by their experiment."""
    return run.experiment if run.benchmark in ("file", "sites") else ""


def _is_share(name: str) -> bool:
    try:
        return 0 <= float(name) <= 1
    except ValueError:
        return False


def finished_runs(runs: list[Run]) -> list[Run]:
    """Those that one table can show; folds are joined already."""
    done = [run for run in runs if run.finished and run.broken is None and run.evaluations]
    finished = [run for run in done if not unscored(run)]
    if done and not finished:
        raise UserError(_unscored_note(done[0]))
    if not finished:
        raise UserError("There is no finished run here; `perinvfl run FILE.toml` makes one.")
    _check_alike(finished)
    return finished


def left_out_notes(runs: list[Run]) -> list[str]:
    """What a table does not show."""
    notes = [run.broken["why"] for run in runs if run.broken is not None]
    pruned = [run for run in runs if run.pruned is not None]
    unfinished = [run for run in runs if not run.finished and run.pruned is None]
    if pruned:
        many = "1 run" if len(pruned) == 1 else f"{len(pruned)} runs"
        notes.append(f"Left out: {many} that the search gave up early (pruned).")
    if unfinished:
        left = counted(len(unfinished), "unfinished run")
        notes.append(f"{left} left out; the command that began a run resumes it.")
    done = [run for run in runs if run.finished and run.broken is None and run.evaluations]
    return [*notes, *(_unscored_note(run) for run in done if unscored(run)), *absent_notes(runs)]


def _unscored_note(run: Run) -> str:
    return (
        f"{run.method}, seed {run.seed}: not shown, because in its last evaluation no client has a score at "
        f"{', '.join(unscored(run))}."
    )


def absent_notes(runs: list[Run]) -> list[str]:
    """Which sites are missing from the mean that a run is shown with."""
    return [
        f"{run.method}, seed {run.seed}: without {', '.join(run.absent)}, which did not answer the last evaluation."
        for run in runs
        if run.absent and run.finished
    ]


def spread_note(runs: list[Run], spectrum: Sequence[str]) -> str:
    """What is averaged, and what ± is over."""
    seeds = max(len(same) for same in by_setting(runs).values())
    over = [*(["clients"] if runs[0].clients > 1 else []), *([f"{seeds} seeds"] if seeds > 1 else [])]
    note = "Last round" + (f", mean over {' and '.join(over)}" if over else "")
    spread = ["over seeds"] if seeds > 1 else []
    spread += ["in the average over the test contexts"] if len(spectrum) > 1 else []
    return note + (f"; ± {', '.join(spread)}." if spread else ".")


def _check_alike(runs: list[Run]) -> None:
    """Rows of one table are of one benchmark and one set of test contexts."""
    first = runs[0]
    others = sorted({run.benchmark for run in runs} - {first.benchmark})
    if others:
        raise UserError(
            f"The folder holds runs on {first.benchmark} and on {', '.join(others)}; give one benchmark's folder."
        )
    odd = next((run for run in runs if run.spectrum != first.spectrum), None)
    if odd is not None:
        both = " and ".join(f"{run.experiment} ({', '.join(run.spectrum)})" for run in (first, odd))
        raise UserError(f"The folder holds runs with different test contexts: {both}; give one experiment's folder.")


def published_table(published: SearchRecords, rule_name: str, score: Score = "accuracy", name: str = "") -> Table:
    """One row for each method: the setting and round a rule takes from the search, measured with fresh seeds."""
    rule = rule_named(rule_name)
    if rule.name not in published.rules():
        raise UserError(
            f"--rule {rule.name}: these records hold nothing that it looks at ({rule.doc}); try "
            f"{', '.join(published.rules())}."
        )
    first = published.chosen[0]
    spectrum = tuple(first.spectrum)
    check_score(published.chosen, score)
    rows = [constant_row(published.chosen, spectrum, score)]
    for method, choice in published.choices(rule.name).items():
        last_runs, runs = (published.runs_of(method, number) for number in (choice.last_setting, choice.setting))
        last = _method_rows(method, last_runs, spectrum, score=score)[0]
        rounds = choice.rounds(len(runs))
        row, *paper = _method_rows(method, runs, spectrum, rounds, score)
        of_global = global_average(runs, spectrum, rounds, score)
        rows += [dataclasses.replace(row, rounds=rounds, last_round=last.average, of_global=of_global), *paper]
    beyond = tuple(case for case in rows[0].cases if case not in spectrum)
    notes = [
        f"Rule {rule.name}: {rule.doc}. {published.effort} on one seed, those chosen measured on "
        f"{rows[1].seeds} others; ± over seeds, in the average over the cases.",
        _columns(rule),
        *_changed_notes(published),
    ]
    return Table(name or first.benchmark, rows, spectrum, beyond, rule.name, [*notes, *_group_notes(rows)])


def several_tables(
    name: str, published: dict[str, SearchRecords], rule_name: str, grouped: Score = "balanced"
) -> Table:
    """Published tables below each other, each row with the name of its own.

    grouped: what those show whose tests have groups, so that their classes may be of unlike size.
    """
    tables = {
        part: published_table(records, rule_name, grouped if has_groups(records.chosen[0]) else "accuracy", part)
        for part, records in published.items()
    }
    rows = [dataclasses.replace(row, benchmark=part) for part, table in tables.items() for row in table.rows]
    beyond = tuple(dict.fromkeys(case for table in tables.values() for case in table.beyond))
    spectrum = tuple(dict.fromkeys(case for table in tables.values() for case in table.spectrum))
    rule = rule_named(rule_name)
    efforts = [f"{part} {records.effort}, {tables[part].rows[1].seeds} seeds" for part, records in published.items()]
    notes = [
        f"Rule {rule.name}: {rule.doc}. ± over seeds, in the average over the cases.",
        f"Searched on one seed, measured on others: {'; '.join(efforts)}.",
        _columns(rule),
    ]
    return Table(name, rows, spectrum, beyond, rule.name, notes)


def _columns(rule: Rule) -> str:
    stopped = "where each run is best by the rule" if rule.own_rounds else "chosen by the rule"
    return (
        f"Round: {stopped}. Last round: the average at the last round, with the setting that the rule chooses there. "
        "Global model: the average of ν beside personal models."
    )


def _changed_notes(published: SearchRecords) -> list[str]:
    """Where settings come from another table."""
    if not published.changed:
        return []
    then, now = (
        " and ".join(f"{key} = {json.dumps(pair[i])}" for key, pair in published.changed.items()) for i in (0, 1)
    )
    return [f"Settings were searched with {then}; the runs shown have {now}."]


def _group_notes(rows: list[Row]) -> list[str]:
    if rows[0].by_group is None:
        return []
    return [
        "Balanced: mean of the accuracies of both classes. Worst group: of class and background. Both at each client, "
        "then the mean over clients. Left over: on all birds of a client that are neither trained on nor among its "
        "test birds."
    ]


def by_setting(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs that differ in nothing but the seed, under their label; two settings of one label say what differs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_flat(run), sort_keys=True), []).append(run)
    labels = [same[0].label for same in groups.values()]
    named = {}
    for same, label in zip(groups.values(), labels, strict=True):
        rivals = [_flat(other[0]) for other, name in zip(groups.values(), labels, strict=True) if name == label]
        own = _flat(same[0])
        differing = [key for key in own if any(rival.get(key) != own[key] for rival in rivals)]
        settings = ", ".join(f"{key} = {own[key]}" for key in differing)
        named[f"{label} ({settings})" if settings else label] = same
    return named


def _flat(run: Run) -> dict[str, Any]:
    """What was asked, the seed left out, by dotted keys."""
    asked = run.asked
    return {f"{part}.{key}": value for part in asked if part != "seed" for key, value in asked[part].items()}


def constant_row(runs: list[Run], spectrum: tuple[str, ...], score: Score = "accuracy") -> Row:
    """The constant predictor on the data of each seed."""
    constant = constant_of(runs)
    return Row(
        "Majority class" if constant.there else "Constant",
        "reference",
        constant.by_case(score),
        spectrum,
        seeds=len(constant.accuracies),
        errors=constant.errors,
        by_group=constant.by_group(spectrum),
        score=score,
    )


def _method_rows(
    label: str, runs: list[Run], spectrum: tuple[str, ...], rounds: Sequence[int] = (), score: Score = "accuracy"
) -> list[Row]:
    """Our row of a method, and the paper's where it has one."""
    measured, published = measured_at(runs, rounds), published_row(runs[0])
    row = Row(
        label,
        "measured",
        measured.by_case(score),
        spectrum,
        measured.worst_client(spectrum),
        len(runs),
        None if published is None else statistics.fmean(published),
        errors=measured.errors,
        by_group=measured.by_group(spectrum),
        score=score,
    )
    if published is None or spectrum != CASES or score != "accuracy":
        return [row]
    values = {case: (value, 0.0) for case, value in zip(CASES, published, strict=True)}
    return [row, Row(f"{label}, paper", "paper", values, spectrum, seeds=3)]
