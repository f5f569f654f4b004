"""Tables as text: Markdown, CSV, LaTeX and JSON, and the cells that the terminal shows."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perinvfl.results.score_names import MEASURES
from perinvfl.results.table import FEW_MARK, TITLES, Row, Table

Format = Literal["md", "csv", "latex", "json"]


@dataclass(frozen=True)
class Text:
    """A table as text."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]


def cells(table: Table) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Header, and for each row its kind and its cells, as text."""
    chosen = any(row.rounds for row in table.rows)
    grouped = list(table.rows[0].by_group or ())
    several = any(row.benchmark for row in table.rows)
    header = [*(["Data"] if several else []), "Method", *table.spectrum]
    header += [*(["Average", "Worst case"] if _summarised(table) else []), *grouped]
    header += [*(["Global model", "Round", "Last round"] if chosen else [])]
    header += [*(["Worst client"] if _by_client(table) else []), *table.beyond]
    return header, [(row.kind, _row_cells(row, table, grouped, chosen, several)) for row in table.rows]


def _summarised(table: Table) -> bool:
    """Of one test context, average and worst case would say the same again."""
    return len(table.spectrum) > 1


def _by_client(table: Table) -> bool:
    return any(row.worst_client is not None for row in table.rows)


def _row_cells(row: Row, table: Table, grouped: list[str], chosen: bool, several: bool) -> list[str]:
    form = _form(row)
    shown = [_cell(row, case, form) for case in table.spectrum]
    beyond = [_cell(row, case, form) for case in table.beyond]
    client = [("" if row.worst_client is None else format(row.worst_client, form))] if _by_client(table) else []
    average = f"{row.average:{form}} ± {row.deviation:{form}}"
    of_global, last_round = ("" if value is None else f"{value:.2f}" for value in (row.of_global, row.last_round))
    taken = [of_global, _span(row.rounds), last_round] if chosen else []
    groups = ["" if row.by_group is None else f"{row.by_group[name]:.2f}" for name in grouped]
    data = row.benchmark if row.score == "accuracy" else f"{row.benchmark}, {TITLES[row.score]}"
    summary = [average, format(row.worst, form)] if _summarised(table) else []
    return [*([data] if several else []), row.method, *shown, *summary, *groups, *taken, *client, *beyond]


def _form(row: Row) -> str:
    if row.score == "accuracy":
        return ".4g" if row.errors else ".2f"
    return MEASURES[row.score].form if row.score in MEASURES else ".2f"


def _cell(row: Row, case: str, form: str) -> str:
    """Mean, deviation over seeds, interval over samples, and a mark where samples are few."""
    if case not in row.cases:
        return ""
    text = _number(row.cases[case], row.seeds, form)
    if case in row.intervals:
        text += " [" + ", ".join(format(end, form) for end in row.intervals[case]) + "]"
    return text + (FEW_MARK if case in row.few else "")


def _span(rounds: Sequence[int]) -> str:
    return "" if not rounds else "–".join(str(end) for end in sorted({min(rounds), max(rounds)}))


def _number(value: tuple[float, float], seeds: int, form: str) -> str:
    mean, deviation = value
    return f"{mean:{form}}" if seeds == 1 or deviation == 0 else f"{mean:{form}} ± {deviation:{form}}"


def render(table: Table, form: Format) -> str:
    if form == "json":
        return json.dumps(as_json(table), indent=2)
    header, rows = cells(table)
    return render_text(Text(table.title, header, [row for _, row in rows], table.notes), form)


def render_text(text: Text, form: str) -> str:
    """A table that is text already, as md, csv or latex; its notes stand in Markdown alone."""
    if form == "csv":
        return _csv(text.header, text.rows)
    if form == "latex":
        return _latex(text.header, text.rows)
    return "\n".join([*_markdown(text.header, text.rows), "", *text.notes])


def _csv(header: list[str], rows: list[list[str]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([header, *rows])
    return buffer.getvalue().rstrip("\n")


def _markdown(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]


def _latex(header: list[str], rows: list[list[str]]) -> str:
    signs = str.maketrans({sign: rf"\{sign}" for sign in "%#_&$"} | {"±": r"$\pm$"})

    def line(row: list[str]) -> str:
        return " & ".join(cell.translate(signs) for cell in row) + r" \\"

    body = [line(row) for row in rows]
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
        "measure": "mean squared error" if table.errors and table.score == "accuracy" else TITLES[table.score],
        "rule": table.rule,
        "score": table.score,
        "seeds": max(row.seeds for row in table.rows if row.kind == "measured"),
        "rows": [_row_json(row, table) for row in table.rows],
    }


def _row_json(row: Row, table: Table) -> dict[str, Any]:
    return {
        "benchmark": row.benchmark or table.benchmark,
        "method": row.method,
        "kind": row.kind,
        "seeds": row.seeds,
        "score": row.score,
        "cases": {
            case: {"mean": mean, "std": std, **_interval_json(row, case)} for case, (mean, std) in row.cases.items()
        },
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


def _interval_json(row: Row, case: str) -> dict[str, Any]:
    if case not in row.intervals:
        return {}
    low, high = row.intervals[case]
    return {"low": low, "high": high, "few": case in row.few}
