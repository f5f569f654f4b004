"""Tables from records: the paper's layout, the paper's rows and the constant predictor beside ours. Never trains."""

import csv
import dataclasses
import io
import json
import statistics
from dataclasses import dataclass
from typing import Any, Literal

from perinvfl.errors import UserError
from perinvfl.paper import CASES, TABLES
from perinvfl.records import Run
from perinvfl.reproduce import Published
from perinvfl.select import rule_named

Format = Literal["md", "csv", "latex", "json"]


@dataclass(frozen=True)
class Row:
    """One method: accuracy in percent by test case, mean and deviation over seeds."""

    method: str
    kind: Literal["measured", "reference", "paper"]
    cases: dict[str, tuple[float, float]]  # every test case, the spectrum and beyond
    spectrum: tuple[str, ...]
    worst_client: float | None = None  # mean over the spectrum at the client that fares worst
    seeds: int = 1
    paper_average: float | None = None
    round: int | None = None  # the round a selection rule took
    last_round: float | None = None  # average at the last round, of the setting the rule takes by its last round

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
        return min(self.values)


@dataclass(frozen=True)
class Table:
    benchmark: str
    rows: list[Row]
    spectrum: tuple[str, ...]
    beyond: tuple[str, ...]  # other test cases, such as those in distribution
    rule: str  # how settings and rounds were chosen
    notes: list[str]


def make_table(runs: list[Run]) -> Table:
    """One row a method, in the order of the experiment file, from the last round of every finished run."""
    finished = [run for run in runs if run.finished and run.broken is None and run.evaluations]
    if not finished:
        raise UserError("There is no finished run here; `perinvfl run FILE.toml` makes one.")
    first = finished[0].start
    if first["task"] == "regression":
        raise UserError("Tables show accuracy; these runs are a regression, whose errors are in their records.")
    benchmark = first["asked"]["data"]["benchmark"]
    others = sorted({run.start["asked"]["data"]["benchmark"] for run in finished} - {benchmark})
    if others:
        raise UserError(
            f"The folder holds runs on {benchmark} and on {', '.join(others)}; give one benchmark's folder."
        )
    spectrum = tuple(first["spectrum"])
    rows = [constant_row(finished, spectrum)]
    for label, same in by_setting(finished).items():
        rows += _method_rows(benchmark, label, same, spectrum)
    beyond = tuple(case for case in rows[0].cases if case not in spectrum)
    notes = ["Last round, mean over clients and seeds; ± over seeds, in the average over the cases."]
    notes += [run.broken["why"] for run in runs if run.broken is not None]
    unfinished = [run for run in runs if not run.finished]
    if unfinished:
        notes.append(f"{len(unfinished)} unfinished runs are left out; the command that began them goes on with them.")
    return Table(benchmark, rows, spectrum, beyond, "last round", notes)


def published_table(published: Published, rule_name: str) -> Table:
    """One row a method: the setting and round a rule takes from the search, measured with fresh seeds."""
    rule = rule_named(rule_name)
    if rule.name == "leave-one-client-out" and not published.left_out:
        raise UserError("These records hold no run with a client left out, so this rule has nothing to look at.")
    first = published.chosen[0]
    spectrum, benchmark = tuple(first.start["spectrum"]), first.start["asked"]["data"]["benchmark"]
    rows = [constant_row(published.chosen, spectrum)]
    for method, choice in published.choices(rule.name).items():
        last = _method_rows(benchmark, method, published.runs_of(method, choice.last_setting), spectrum)[0]
        row, *paper = _method_rows(benchmark, method, published.runs_of(method, choice.setting), spectrum, choice.round)
        rows += [dataclasses.replace(row, round=choice.round, last_round=last.average), *paper]
    beyond = tuple(case for case in rows[0].cases if case not in spectrum)
    settings = len(published.search) // len(published.methods())
    notes = [
        f"Rule {rule.name}: {rule.doc}. {settings} settings a method on one seed, those chosen measured on "
        f"{rows[1].seeds} others; ± over seeds, in the average over the cases.",
        "Round: the one the rule takes. Last round: the average there, of the setting the rule takes by last rounds.",
    ]
    return Table(benchmark, rows, spectrum, beyond, rule.name, notes)


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


def constant_row(runs: list[Run], spectrum: tuple[str, ...]) -> Row:
    """The constant predictor on the data of each seed."""
    drawn: dict[int, dict[str, list[float]]] = {
        run.start["asked"]["seed"]: run.start["notes"]["constant"] for run in runs
    }
    cases = {}
    for case in next(iter(drawn.values())):
        by_seed = [100 * statistics.fmean(constant[case]) for constant in drawn.values()]
        cases[case] = (statistics.fmean(by_seed), statistics.pstdev(by_seed))
    return Row("Constant", "reference", cases, spectrum, seeds=len(drawn))


def _method_rows(
    benchmark: str, label: str, runs: list[Run], spectrum: tuple[str, ...], round: int | None = None
) -> list[Row]:
    algorithm = runs[0].start["asked"]["algorithm"]["name"]
    published = TABLES.get(benchmark, {}).get(algorithm) if _as_published(runs[0]) else None
    events = [[event for event in run.evaluations if round in (None, event["round"])][-1] for run in runs]
    measured = [event.get("personal") or event["global"] for event in events]
    cases = {}
    for case in measured[0]:
        if case != "validation":
            by_seed = [100 * statistics.fmean(cases_of_run[case]) for cases_of_run in measured]
            cases[case] = (statistics.fmean(by_seed), statistics.pstdev(by_seed))
    by_client = [
        [statistics.fmean(of_run[case][i] for case in spectrum) for i in range(len(of_run[spectrum[0]]))]
        for of_run in measured
    ]
    worst_client = 100 * statistics.fmean(min(clients) for clients in by_client)
    paper_average = None if published is None else statistics.fmean(published)
    rows = [Row(label, "measured", cases, spectrum, worst_client, len(runs), paper_average)]
    if published is not None and spectrum == CASES:
        values = {case: (value, 0.0) for case, value in zip(CASES, published, strict=True)}
        rows.append(Row(f"{label}, paper", "paper", values, spectrum, seeds=3))
    return rows


def _as_published(run: Run) -> bool:
    """Whether a run is the paper's method on the paper's data, so that its numbers may stand beside the paper's."""
    asked = run.start["asked"]
    # The paper's experiments take L_INV = IRM.
    return not asked["data"].get("grayscale", False) and asked["algorithm"].get("invariance", "irm") == "irm"


def cells(table: Table) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Header, and for each row its kind and its cells, as text."""
    chosen = any(row.round is not None for row in table.rows)
    header = ["Method", *table.spectrum, "Average", "Worst case", *(["Round", "Last round"] if chosen else [])]
    header += ["Worst client", *table.beyond]
    rows: list[tuple[str, list[str]]] = []
    for row in table.rows:
        shown = [_number(row.cases[case], row.seeds) if case in row.cases else "" for case in table.spectrum]
        beyond = [_number(row.cases[case], row.seeds) if case in row.cases else "" for case in table.beyond]
        client = "" if row.worst_client is None else f"{row.worst_client:.2f}"
        average = f"{row.average:.2f} ± {row.deviation:.2f}"
        taken = ["" if row.round is None else str(row.round), "" if row.last_round is None else f"{row.last_round:.2f}"]
        rows.append(
            (row.kind, [row.method, *shown, average, f"{row.worst:.2f}", *(taken if chosen else []), client, *beyond])
        )
    return header, rows


def _number(value: tuple[float, float], seeds: int) -> str:
    mean, deviation = value
    return f"{mean:.2f}" if seeds == 1 or deviation == 0 else f"{mean:.2f} ± {deviation:.2f}"


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
    def line(row: list[str]) -> str:
        return " & ".join(cell.replace("±", r"$\pm$").replace("%", r"\%").replace("#", r"\#") for cell in row) + r" \\"

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
        "rule": table.rule,
        "seeds": max(row.seeds for row in table.rows if row.kind == "measured"),
        "rows": [
            {
                "method": row.method,
                "kind": row.kind,
                "cases": {case: {"mean": mean, "std": std} for case, (mean, std) in row.cases.items()},
                "average": row.average,
                "deviation": row.deviation,
                "worst": row.worst,
                "worst_client": row.worst_client,
                "paper_average": row.paper_average,
                "round": row.round,
                "last_round_average": row.last_round,
            }
            for row in table.rows
        ],
    }
