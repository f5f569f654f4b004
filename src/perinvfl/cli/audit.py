"""`perinvfl audit`: which columns of a table not to trust, what a model is without them, and what to do."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable
from rich.text import Text

from perinvfl.cli.columns import USUAL, named_or_guessed
from perinvfl.cli.options import Category, Client, Context, Format, Label, Missing, TextOrJson, missing_values
from perinvfl.core.naming import counted
from perinvfl.core.saying import hand_over, say
from perinvfl.terminal.console import wide_console

if TYPE_CHECKING:
    from perinvfl.audit import Audit
    from perinvfl.audit.without import Change

MOST_SHOWN = 30


def audit(
    path: Annotated[Path, typer.Argument(help="A CSV or Parquet table, .npz or .safetensors.")],
    label: Label = None,
    client: Client = None,
    context: Context = None,
    held_out: Annotated[
        list[str] | None, typer.Option("--held-out", help="A context used only to test the advice; may be repeated.")
    ] = None,
    feature: Annotated[list[str] | None, typer.Option("--feature", help="A column to look at; by default all.")] = None,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", help="A column to leave out.")] = None,
    category: Category = None,
    missing: Missing = None,
    task: Annotated[str, typer.Option("--task", help="auto, binary, multiclass or regression.")] = "auto",
    out: Annotated[Path, typer.Option("--out", help="Folder for the page and the numbers.")] = Path("audit"),
    format: Format = TextOrJson.text,
) -> None:
    """Look for shortcuts in a table: what changes its meaning between contexts and sites, and what to do about it."""
    from perinvfl.audit import audit_table
    from perinvfl.core import config
    from perinvfl.core.files import write_atomically
    from perinvfl.data.own.files import FileSettings
    from perinvfl.report.audit_page import render_audit

    asked, usual = {"label": label, "client": client, "context": context}, {**USUAL, "context": ""}
    given = {
        "path": str(path), **named_or_guessed(path, asked, usual, format is TextOrJson.json), "task": task,
        "test_contexts": held_out or [], "features": feature or [], "ignore": ignore or [],
        "categories": category or [], "missing_values": missing_values(missing),
    }  # fmt: skip
    found = audit_table(config.build(FileSettings, given, "data"))
    out.mkdir(parents=True, exist_ok=True)
    page, numbers = out / "audit.html", out / "audit.json"
    text = json.dumps(found.as_json(), indent=1)
    write_atomically(numbers, text.encode())
    write_atomically(page, render_audit(found).encode())
    if format is TextOrJson.json:
        hand_over(text)
        return
    _show(found)
    say(f"{page}\n{numbers}")


def _show(found: "Audit") -> None:
    from perinvfl.audit import words

    console = wide_console()
    contexts = f", {counted(len(found.contexts), 'context')}" if found.contexts else ""
    told = f"{found.file}: {counted(found.rows, 'row')}, {counted(len(found.sites), 'site')}{contexts}"
    console.print(told)
    console.print(words.headline(found), style="bold")
    if words.doubt(found):
        console.print(words.doubt(found), style="bold yellow", soft_wrap=True)
    shown = RichTable(title="Without the column, change in points (95 % interval)", title_justify="left", expand=False)
    shown.add_column("column")
    shown.add_column("advice")
    shown.add_column("because")
    for test in found.tests:
        shown.add_column(words.TESTS[test], justify="right")
    colours = {"drop": "red", "discount": "yellow", "keep": "green"}
    for column in found.columns[:MOST_SHOWN]:
        advice, reason = column.verdict.advice, words.short(column)
        changes = [_points(column.changes.get(test)) for test in found.tests]
        colour = "yellow" if column.doubtful else colours[advice]
        shown.add_row(column.name, Text(advice, style=colour), reason, *changes)
    console.print(shown)
    if len(found.columns) > MOST_SHOWN:
        console.print(f"... and {len(found.columns) - MOST_SHOWN} more columns, on the page.")
    for column in found.columns:
        if words.is_explained(column):
            reasons = [words.why(found, column), words.held_out_reason(column), words.price(column)]
            console.print(f"{column.verdict.advice}: {' '.join(filter(None, reasons))}", soft_wrap=True)
    for line in words.effect(found):
        console.print(line, soft_wrap=True)
    for line in words.limits(found):
        console.print(f"note: {line}", style="yellow", soft_wrap=True)


def _points(change: "Change | None") -> str:
    from perinvfl.audit.numbers import signed

    if change is None:
        return "not tried"
    mean, low, high = (signed(100 * value) for value in (change.mean, change.low, change.high))
    return f"{mean} ({low} to {high})"
