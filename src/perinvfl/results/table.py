"""Tables from records: the paper's layout, the paper's rows and the constant predictor beside ours. Never trains."""

import csv
import dataclasses
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perinvfl.errors import UserError
from perinvfl.learning.groups import (
    GROUP_SCORES,
    Counts,
    Score,
    balanced_accuracy,
    constant_hits,
    pooled,
    worst_group_accuracy,
)
from perinvfl.results.balanced import has_groups
from perinvfl.results.folds import join_folds
from perinvfl.results.paper import CASES, LAW, METHODS, TABLES
from perinvfl.results.search_records import SearchRecords
from perinvfl.results.selection import Rule, rule_named
from perinvfl.runs.records import Run, evaluations_at, mean_known

Format = Literal["md", "csv", "latex", "json"]
TITLES = {"accuracy": "accuracy", "balanced": "class-balanced accuracy", "worst-group": "worst-group accuracy"}


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
    score: Score = "accuracy"  # what the cases show

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

    @property
    def score(self) -> Score:
        """What the cases show; where it differs between rows, each says so."""
        shown = {row.score for row in self.rows}
        return shown.pop() if len(shown) == 1 else "accuracy"

    @property
    def errors(self) -> bool:
        return any(row.errors for row in self.rows)

    @property
    def title(self) -> str:
        measure = "mean squared error" if self.errors else f"{TITLES[self.score]} in percent"
        return f"{self.benchmark}: {measure} by {'context' if self.benchmark in ('file', 'sites') else 'p_test'}"


def make_table(runs: list[Run], score: Score = "accuracy") -> Table:
    """One row a method, in the order of the experiment file, from the last round of every finished run."""
    runs = join_folds(runs)
    finished = [run for run in runs if run.finished and run.broken is None and run.evaluations]
    if not finished:
        raise UserError("There is no finished run here; `perinvfl run FILE.toml` makes one.")
    first = finished[0].start
    benchmark = first["asked"]["data"]["benchmark"]
    others = sorted({run.start["asked"]["data"]["benchmark"] for run in finished} - {benchmark})
    if others:
        raise UserError(
            f"The folder holds runs on {benchmark} and on {', '.join(others)}; give one benchmark's folder."
        )
    odd = next((run.start for run in finished if run.start["spectrum"] != first["spectrum"]), None)
    if odd is not None:
        told = " and ".join(f"{start['experiment']} ({', '.join(start['spectrum'])})" for start in (first, odd))
        raise UserError(f"The folder holds runs with different test contexts: {told}; give one experiment's folder.")
    _check_score(finished[0], score)
    spectrum = tuple(first["spectrum"])
    rows = [constant_row(finished, spectrum, score)]
    for label, same in by_setting(finished).items():
        rows += _method_rows(benchmark, label, same, spectrum, score=score)
    beyond = tuple(case for case in rows[0].cases if case not in spectrum)
    notes = ["Last round, mean over clients and seeds; ± over seeds, in the average over the cases."]
    if first["task"] == "regression" and first["asked"]["data"].get("standardise"):
        notes.append("Errors are in units of the label's variance in training.")
    notes += [run.broken["why"] for run in runs if run.broken is not None]
    unfinished = [run for run in runs if not run.finished]
    if unfinished:
        notes.append(f"{len(unfinished)} unfinished runs are left out; the command that began them goes on with them.")
    return Table(benchmark, rows, spectrum, beyond, "last round", [*notes, *_group_notes(rows)])


def published_table(published: SearchRecords, rule_name: str, score: Score = "accuracy", name: str = "") -> Table:
    """One row a method: the setting and round a rule takes from the search, measured with fresh seeds."""
    rule = rule_named(rule_name)
    if rule.name not in published.rules():
        raise UserError(
            f"--rule {rule.name}: these records hold nothing that it looks at ({rule.doc}); try "
            f"{', '.join(published.rules())}."
        )
    first = published.chosen[0]
    spectrum, benchmark = tuple(first.start["spectrum"]), first.start["asked"]["data"]["benchmark"]
    _check_score(first, score)
    rows = [constant_row(published.chosen, spectrum, score)]
    for method, choice in published.choices(rule.name).items():
        last_runs, runs = (published.runs_of(method, number) for number in (choice.last_setting, choice.setting))
        last = _method_rows(benchmark, method, last_runs, spectrum, score=score)[0]
        rounds = choice.rounds(len(runs))
        row, *paper = _method_rows(benchmark, method, runs, spectrum, rounds, score)
        of_global = _global_average(runs, spectrum, rounds, score)
        rows += [dataclasses.replace(row, rounds=rounds, last_round=last.average, of_global=of_global), *paper]
    beyond = tuple(case for case in rows[0].cases if case not in spectrum)
    notes = [
        f"Rule {rule.name}: {rule.doc}. {published.effort} on one seed, those chosen measured on "
        f"{rows[1].seeds} others; ± over seeds, in the average over the cases.",
        _columns(rule),
    ]
    return Table(name or benchmark, rows, spectrum, beyond, rule.name, [*notes, *_group_notes(rows)])


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
    stopped = "where each run is best by the rule" if rule.own_rounds else "the one the rule takes"
    return (
        f"Round: {stopped}. Last round: the average there, of the setting the rule takes by last rounds. Global model: "
        "the average of ν beside personal models."
    )


def _global_average(runs: list[Run], spectrum: tuple[str, ...], rounds: Sequence[int], score: Score) -> float | None:
    events = evaluations_at(runs, rounds)
    if not all("personal" in event and "global" in event for event in events):
        return None
    if score != "accuracy":
        there = [run.start["notes"]["groups"]["counts"] for run in runs]
        pairs = [(event["global groups"], counts) for event, counts in zip(events, there, strict=True)]
        return 100 * statistics.fmean(GROUP_SCORES[score](r[case], n[case]) for r, n in pairs for case in spectrum)
    return 100 * statistics.fmean(mean_known(event["global"][case]) for event in events for case in spectrum)


def _check_score(run: Run, score: Score) -> None:
    if score != "accuracy" and "groups" not in run.start["notes"]:
        raise UserError(f'--score {score}: these runs have no groups; "accuracy" is what they hold.')


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
    labels = [same[0].start["asked"]["algorithm"]["label"] for same in groups.values()]
    named = {}
    for same, label in zip(groups.values(), labels, strict=True):
        rivals = [_flat(other[0]) for other, name in zip(groups.values(), labels, strict=True) if name == label]
        own = _flat(same[0])
        differing = [key for key in own if any(rival.get(key) != own[key] for rival in rivals)]
        told = ", ".join(f"{key} = {own[key]}" for key in differing)
        named[f"{label} ({told})" if told else label] = same
    return named


def _flat(run: Run) -> dict[str, Any]:
    """What was asked, the seed left out, by dotted keys."""
    asked = run.start["asked"]
    return {f"{part}.{key}": value for part in asked if part != "seed" for key, value in asked[part].items()}


def constant_row(runs: list[Run], spectrum: tuple[str, ...], score: Score = "accuracy") -> Row:
    """The constant predictor on the data of each seed."""
    factor, errors = _unit(runs[0])
    drawn = {run.start["asked"]["seed"]: run.start["notes"] for run in runs}
    accuracies = [notes["constant"] for notes in drawn.values()]
    groups = [notes["groups"] for notes in drawn.values() if "groups" in notes]
    right = [
        {case: constant_hits(counts, group["majority"]) for case, counts in group["counts"].items()} for group in groups
    ]
    cases = _by_case(score, factor, accuracies, right, [group["counts"] for group in groups])
    by_group = _by_group(spectrum, accuracies, right, [group["counts"] for group in groups]) if groups else None
    name = "Majority class" if groups else "Constant"
    return Row(name, "reference", cases, spectrum, seeds=len(drawn), errors=errors, by_group=by_group, score=score)


def _unit(run: Run) -> tuple[float, bool]:
    """What scores are multiplied by, and whether they are errors."""
    return (1.0, True) if run.start["task"] == "regression" else (100.0, False)


Cases = dict[str, list[float | None]]  # test case -> accuracy of each client
GroupCases = dict[str, Counts]  # test case -> counts of each client and group


def _by_case(
    score: Score, factor: float, accuracies: list[Cases], right: list[GroupCases], there: list[GroupCases]
) -> dict[str, tuple[float, float]]:
    """Mean and deviation over seeds of each case, in percent; the errors of a regression as they are."""
    found = {}
    for case in accuracies[0]:
        if case.startswith("validation"):
            continue  # held-out data is for rules; a client may have none that a reference model gets wrong
        if score == "accuracy":
            by_seed = [factor * mean_known(of_seed[case]) for of_seed in accuracies]
        elif case in there[0]:
            by_seed = [100 * GROUP_SCORES[score](r[case], n[case]) for r, n in zip(right, there, strict=True)]
        found[case] = (statistics.fmean(by_seed), statistics.pstdev(by_seed))
    return found


def _by_group(
    spectrum: tuple[str, ...], accuracies: list[Cases], right: list[GroupCases], there: list[GroupCases]
) -> dict[str, float]:
    """Over the spectrum, and over the same contexts with all birds left over; mean over seeds, in percent."""
    columns = {}
    left_over = tuple(case for case in there[0] if case not in spectrum)
    for prefix, cases in (("", spectrum), ("Left over, ", left_over)):
        if not cases:
            continue
        if prefix:  # the plain average over the spectrum has its own column
            columns["Left over"] = statistics.fmean(
                100 * mean_known(of_seed[case]) for of_seed in accuracies for case in cases
            )
        pairs = list(zip(right, there, strict=True))
        balanced = [balanced_accuracy(r[case], n[case]) for r, n in pairs for case in cases]
        # A group may hold one bird of a client in one context, so contexts are put together before the worst is taken.
        worst = [worst_group_accuracy(pooled([r[c] for c in cases]), pooled([n[c] for c in cases])) for r, n in pairs]
        columns[f"{prefix}balanced".capitalize()] = 100 * statistics.fmean(balanced)
        columns[f"{prefix}worst group".capitalize()] = 100 * statistics.fmean(worst)
    return columns


def _span(rounds: Sequence[int]) -> str:
    return "" if not rounds else "–".join(str(end) for end in sorted({min(rounds), max(rounds)}))


def _method_rows(
    benchmark: str,
    label: str,
    runs: list[Run],
    spectrum: tuple[str, ...],
    rounds: Sequence[int] = (),
    score: Score = "accuracy",
) -> list[Row]:
    factor, errors = _unit(runs[0])
    algorithm = runs[0].start["asked"]["algorithm"]["name"]
    published = TABLES.get(benchmark, {}).get(algorithm) if as_published(runs[0]) else None
    events = evaluations_at(runs, rounds)
    measured = [event.get("personal") or event["global"] for event in events]
    grouped = "groups" in runs[0].start["notes"]
    right = [event.get("personal groups") or event["global groups"] for event in events] if grouped else []
    there = [run.start["notes"]["groups"]["counts"] for run in runs] if grouped else []
    cases = _by_case(score, factor, measured, right, there)
    by_group = _by_group(spectrum, measured, right, there) if grouped else None
    by_client = [
        [
            mean_known(scores)
            for scores in zip(*(of_run[case] for case in spectrum), strict=True)
            if any(score is not None for score in scores)
        ]
        for of_run in measured
    ]
    worst_client = factor * statistics.fmean((max if errors else min)(clients) for clients in by_client)
    paper_average = None if published is None else statistics.fmean(published)
    rows = [
        Row(
            label,
            "measured",
            cases,
            spectrum,
            worst_client,
            len(runs),
            paper_average,
            errors=errors,
            by_group=by_group,
            score=score,
        )
    ]
    if published is not None and spectrum == CASES and score == "accuracy":
        values = {case: (value, 0.0) for case, value in zip(CASES, published, strict=True)}
        rows.append(Row(f"{label}, paper", "paper", values, spectrum, seeds=3))
    return rows


def as_published(run: Run) -> bool:
    """Whether a run is the paper's method on the paper's data, so that its numbers may stand beside the paper's."""
    asked = run.start["asked"]
    contexts = asked.get("contexts", {})
    if contexts.get("use", "judge") != "judge" or contexts.get("align", "nothing") != "nothing":
        return False
    if any(asked["data"].get(key, value) != value for key, value in LAW.items()):
        return False
    if asked["model"].get("blind_to", "nothing") != "nothing":
        return False
    if any(asked["algorithm"].get(key, value) != value for key, value in METHODS.items()):
        return False
    return not asked["data"].get("grayscale", False) and not asked["data"].get("middle")


def cells(table: Table) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Header, and for each row its kind and its cells, as text."""
    chosen = any(row.rounds for row in table.rows)
    grouped = list(table.rows[0].by_group or ())
    several = any(row.benchmark for row in table.rows)
    header = [*(["Data"] if several else []), "Method", *table.spectrum, "Average", "Worst case", *grouped]
    header += [*(["Global model", "Round", "Last round"] if chosen else []), "Worst client", *table.beyond]
    rows: list[tuple[str, list[str]]] = []
    for row in table.rows:
        form = ".4g" if row.errors else ".2f"
        shown = [_number(row.cases[case], row.seeds, form) if case in row.cases else "" for case in table.spectrum]
        beyond = [_number(row.cases[case], row.seeds, form) if case in row.cases else "" for case in table.beyond]
        client = "" if row.worst_client is None else format(row.worst_client, form)
        average = f"{row.average:{form}} ± {row.deviation:{form}}"
        taken = ["" if row.of_global is None else f"{row.of_global:.2f}"]
        taken += [
            _span(row.rounds),
            "" if row.last_round is None else f"{row.last_round:.2f}",
        ]
        groups = ["" if row.by_group is None else f"{row.by_group[name]:.2f}" for name in grouped]
        summary = [average, format(row.worst, form), *groups, *(taken if chosen else []), client]
        data = row.benchmark if row.score == "accuracy" else f"{row.benchmark}, {TITLES[row.score]}"
        rows.append((row.kind, [*([data] if several else []), row.method, *shown, *summary, *beyond]))
    return header, rows


def _number(value: tuple[float, float], seeds: int, form: str) -> str:
    mean, deviation = value
    return f"{mean:{form}}" if seeds == 1 or deviation == 0 else f"{mean:{form}} ± {deviation:{form}}"


def render(table: Table, form: Format) -> str:
    header, rows = cells(table)
    if form == "json":
        return json.dumps(as_json(table), indent=2)
    if form == "csv":
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(row for _, row in rows)
        return buffer.getvalue().rstrip("\n")
    if form == "latex":
        return _latex(header, rows)
    widths = [max(len(line[column]) for line in [header, *(row for _, row in rows)]) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *(row for _, row in rows)]
    body = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    return "\n".join([*body, "", *table.notes])


def _latex(header: list[str], rows: list[tuple[str, list[str]]]) -> str:
    signs = str.maketrans({sign: rf"\{sign}" for sign in "%#_&$"} | {"±": r"$\pm$"})

    def line(row: list[str]) -> str:
        return " & ".join(cell.translate(signs) for cell in row) + r" \\"

    body = [line(row) for _, row in rows]
    columns = "l" + "c" * (len(header) - 1)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            line(header),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def as_json(table: Table) -> dict[str, Any]:
    return {
        "benchmark": table.benchmark,
        "measure": "mean squared error" if table.errors else "accuracy",
        "rule": table.rule,
        "score": table.score,
        "seeds": max(row.seeds for row in table.rows if row.kind == "measured"),
        "rows": [
            {
                "benchmark": row.benchmark or table.benchmark,
                "method": row.method,
                "kind": row.kind,
                "seeds": row.seeds,
                "score": row.score,
                "cases": {case: {"mean": mean, "std": std} for case, (mean, std) in row.cases.items()},
                "average": row.average,
                "deviation": row.deviation,
                "worst": row.worst,
                "worst_client": row.worst_client,
                "paper_average": row.paper_average,
                "rounds": list(row.rounds),
                "global_average": row.of_global,
                "last_round_average": row.last_round,
                "by_group": row.by_group,
            }
            for row in table.rows
        ],
    }
