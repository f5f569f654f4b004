"""`perinvfl data check`: how your own data were understood, and what is wrong with them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from perinvfl.cli.columns import USUAL, named_or_guessed
from perinvfl.cli.options import Category, Client, Context, Format, Label, Missing, TextOrJson, missing_values
from perinvfl.core.naming import shortened, with_and
from perinvfl.core.saying import hand_over
from perinvfl.errors import UserError
from perinvfl.terminal.console import wide_console

if TYPE_CHECKING:
    from perinvfl.data.own.files import FileSettings

MOST_LINES = 40  # of faults, grouped by column, of notes on columns, and of a table
LONGEST_LINE = 2000  # characters
MOST_HEADS = 12  # contexts, or classes, beside each other in a table


def check(
    path: Annotated[
        Path | None, typer.Argument(help="A CSV or Parquet table, .npz, .safetensors, or a folder of photographs.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="An experiment file that names the data.")] = None,
    label: Label = None,
    client: Client = None,
    context: Context = None,
    test_context: Annotated[list[str] | None, typer.Option("--test-context", help="A context to hold out.")] = None,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", help="A column to leave out.")] = None,
    category: Category = None,
    missing: Missing = None,
    task: Annotated[str, typer.Option("--task", help="auto, binary, multiclass or regression.")] = "auto",
    format: Format = TextOrJson.text,
) -> None:
    """Show how your own data are understood, and what is wrong with them, column by column. Nothing is trained."""
    from perinvfl.core import config
    from perinvfl.data.own.files import FileSettings
    from perinvfl.data.own.survey import survey

    if (path is None) == (file is None):
        raise UserError("Give either the path of the data or --file with an experiment that names it.")
    if path is None:
        assert file is not None
        settings = _of_experiment(file)
    else:
        asked = {"label": label, "client": client, "context": context}
        given = {
            "path": str(path), **named_or_guessed(path, asked, USUAL, format is TextOrJson.json), "task": task,
            "test_contexts": test_context or [], "ignore": ignore or [],
            "categories": category or [], "missing_values": missing_values(missing),
        }  # fmt: skip
        settings = config.build(FileSettings, given, "data")
    found = survey(settings)
    if format is TextOrJson.json:
        hand_over(json.dumps(found, indent=2))
    else:
        _show(wide_console(), found)
    if found["faults"]:
        raise typer.Exit(2)


def _of_experiment(file: Path) -> "FileSettings":
    from perinvfl.data.own.files import FileSettings
    from perinvfl.runs.experiment import read_data_settings

    _, settings = read_data_settings(file)
    if not isinstance(settings, FileSettings):
        raise UserError(f'{file} names no data of your own: its data.benchmark is not "file".')
    return settings


def _show(console: Console, found: dict[str, Any]) -> None:
    from perinvfl.data.own.survey import headline

    console.print(shortened(headline(found), LONGEST_LINE), style="bold")
    if "task" in found:
        _show_tables(console, found)
    for note in found.get("reading", []):
        _tell(console, f"note: {note}", "yellow")
    for warning in found["warnings"][:MOST_LINES]:
        _tell(console, f"note: {warning}", "yellow")
    for remark in found["remarks"][:MOST_LINES]:
        _tell(console, f"note: {remark['message']}", "yellow")
    look_at = found.get("look_at", [])
    for point in look_at:
        _tell(console, f"look at: {point}", "yellow")
    for group in found["grouped"][:MOST_LINES]:
        _tell(console, f"wrong: {group['message']}", "red")
    for name in ("warnings", "remarks", "grouped"):
        if len(found[name]) > MOST_LINES:
            more = f"{len(found[name]) - MOST_LINES} more {'faults' if name == 'grouped' else 'notes'}"
            console.print(f"... and {more}; --format json lists all.")
    if look_at and not found["faults"]:
        console.print('These data can be trained on, but first look at what is marked "look at".', style="yellow")
    elif not found["faults"]:
        console.print("Nothing is wrong: these data can be trained on.", style="green")


def _tell(console: Console, line: str, style: str) -> None:
    console.print(shortened(line, LONGEST_LINE), style=style, soft_wrap=True)


def _show_tables(console: Console, found: dict[str, Any]) -> None:
    classes = list(found["label"].get("classes", {}))
    if found["used"] < found["rows"]:
        left = f"Shown are the {found['used']} of {found['rows']} rows in which nothing is wrong."
        console.print(left, style="red")
    console.print(_clients_table(found, classes))
    if len(found["contexts"]) > 1:
        console.print(_contexts_table(found, classes))
        console.print(_known_from("context", found["from_context"]))
    if len(found["clients"]) > 1:
        console.print(_known_from("client", found["from_client"]))
    if found["relations"]:
        console.print(_relations_table(found))
    lists = (("clients", found["clients"], MOST_LINES), ("contexts", found["contexts"], MOST_HEADS),
             ("classes", classes, MOST_HEADS), ("columns", found["relations"], MOST_LINES))  # fmt: skip
    more = [f"{len(names) - most} more {what}" for what, names, most in lists if len(names) > most]
    if more:
        console.print(f"Not all is shown: there are {with_and(more)}; --format json lists all.")


def _clients_table(found: dict[str, Any], classes: list[str]) -> RichTable:
    shown = RichTable(title="Clients", title_justify="left", expand=False)
    contexts = found["contexts"][:MOST_HEADS] if len(found["contexts"]) > 1 else []
    alone = ["label from context alone"] if contexts else []
    heads = ["client", "rows", *(context["name"] for context in contexts), *_label_heads(classes), *alone]
    for number, head in enumerate(heads):
        shown.add_column(head, justify="right" if number else "left")
    for client in found["clients"][:MOST_LINES]:
        counts = [str(client["contexts"].get(context["name"], 0)) for context in contexts]
        known = [_known(client["from_context"])] if contexts else []
        shown.add_row(client["name"], str(client["rows"]), *counts, *_label_cells(client), *known)
    return shown


def _contexts_table(found: dict[str, Any], classes: list[str]) -> RichTable:
    shown = RichTable(title="Contexts", title_justify="left", expand=False)
    for number, head in enumerate(["context", "rows", "used to", *_label_heads(classes)]):
        shown.add_column(head, justify="right" if number else "left")
    for context in found["contexts"][:MOST_LINES]:
        use = "test" if context["held_out"] else "train"
        shown.add_row(context["name"], str(context["rows"]), use, *_label_cells(context))
    return shown


def _relations_table(found: dict[str, Any]) -> RichTable:
    named = ["class"] if found["task"] == "multiclass" else []  # the one most correlated with a column
    title = f"Correlation with the {'class' if named else 'label'} by context, largest change first"
    shown = RichTable(title=title, title_justify="left", expand=False)
    for number, head in enumerate(["column", *named, *(c["name"] for c in found["contexts"][:MOST_HEADS]), "change"]):
        shown.add_column(head, justify="right" if number else "left")
    for relation in found["relations"][:MOST_LINES]:
        values = [f"{value:+.2f}" for value in list(relation["by_context"].values())[:MOST_HEADS]]
        shown.add_row(
            relation["column"], *(relation.get(head, "") for head in named), *values, f"{relation['change']:.2f}"
        )
    return shown


def _label_heads(classes: list[str]) -> list[str]:
    return classes[:MOST_HEADS] if classes else ["mean label", "deviation"]


def _label_cells(part: dict[str, Any]) -> list[str]:
    if "mean" in part:
        return [f"{part['mean']:.4g}", f"{part['deviation']:.4g}"]
    total = max(sum(part["classes"].values()), 1)
    return [f"{count} ({100 * count / total:.0f} %)" for count in list(part["classes"].values())[:MOST_HEADS]]


def _known(score: dict[str, float]) -> str:
    if "explained" in score:
        return f"{100 * score['explained']:.1f} % of variance"
    return f"{100 * score['accuracy']:.1f} % ({100 * score['constant']:.1f} % without)"


def _known_from(what: str, score: dict[str, float]) -> str:
    if "explained" in score:
        return f"Knowing the {what} alone explains {100 * score['explained']:.1f} % of the label's variance."
    return (
        f"Knowing the {what} alone predicts the label in {100 * score['accuracy']:.1f} % of the rows; "
        f"the most frequent label is right in {100 * score['constant']:.1f} %."
    )
