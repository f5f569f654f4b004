"""`perinvfl data check`: what was understood of own data, and what is wrong with them."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from perinvfl.core import config
from perinvfl.data.own.files import FileSettings
from perinvfl.data.own.survey import headline, survey
from perinvfl.errors import UserError
from perinvfl.runs.experiment import read_data_settings

MOST_FAULTS = 20


class Form(StrEnum):
    text = "text"
    json = "json"


def check(
    path: Annotated[
        Path | None, typer.Argument(help="A CSV or Parquet table, .npz, .safetensors, or a folder of photographs.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="An experiment file that names the data.")] = None,
    label: Annotated[str, typer.Option("--label", help="Column to be predicted.")] = "label",
    client: Annotated[
        str, typer.Option("--client", help='Column that tells the clients apart; "" for none.')
    ] = "client",
    context: Annotated[
        str, typer.Option("--context", help='Column that tells contexts apart; "" for none.')
    ] = "context",
    test_context: Annotated[list[str] | None, typer.Option("--test-context", help="A context to hold out.")] = None,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", help="A column to leave aside.")] = None,
    task: Annotated[str, typer.Option("--task", help="auto, binary, multiclass or regression.")] = "auto",
    format: Annotated[Form, typer.Option("--format", help="For the eye, or for programs.")] = Form.text,
) -> None:
    """Say what was understood of your own data, and what is wrong with them, by row and column. Nothing is trained."""
    if (path is None) == (file is None):
        raise UserError("Give either the path of the data or --file with an experiment that names it.")
    if file is not None:
        settings = _of_experiment(file)
    else:
        given = {
            "path": str(path), "label": label, "client": client, "context": context, "task": task,
            "test_contexts": test_context or [], "ignore": ignore or [],
        }  # fmt: skip
        settings = config.build(FileSettings, given, "data")
    told = survey(settings)
    if format is Form.json:
        print(json.dumps(told, indent=2))
    else:
        console = Console()
        _show(console if console.is_terminal else Console(width=160), told)
    if told["faults"]:
        raise typer.Exit(2)


def _of_experiment(file: Path) -> FileSettings:
    _, settings = read_data_settings(file)
    if not isinstance(settings, FileSettings):
        raise UserError(f'{file} names no data of your own: its data.benchmark is not "file".')
    return settings


def _show(console: Console, told: dict[str, Any]) -> None:
    console.print(headline(told), style="bold", highlight=False)
    if "task" in told:
        classes = list(told["label"].get("classes", {}))
        console.print(_clients_table(told, classes))
        console.print(_contexts_table(told, classes))
        console.print(_from_context(told), highlight=False)
        if told["relations"]:
            console.print(_relations_table(told))
    for warning in told["warnings"]:
        console.print(f"note: {warning}", style="yellow", highlight=False, markup=False)
    for fault in told["faults"][:MOST_FAULTS]:
        console.print(f"wrong: {fault['told']}", style="red", highlight=False, markup=False, soft_wrap=True)
    if len(told["faults"]) > MOST_FAULTS:
        console.print(f"... and {len(told['faults']) - MOST_FAULTS} more; --format json lists all.", highlight=False)
    if not told["faults"]:
        console.print("Nothing is wrong: these data can be trained on.", style="green", highlight=False)


def _clients_table(told: dict[str, Any], classes: list[str]) -> RichTable:
    shown = RichTable(title="Clients", title_justify="left", expand=False)
    heads = [
        "client",
        "rows",
        *(c["name"] for c in told["contexts"]),
        *_label_heads(classes),
        "label from context alone",
    ]
    for number, head in enumerate(heads):
        shown.add_column(head, justify="right" if number else "left")
    for client in told["clients"]:
        counts = [str(client["contexts"].get(context["name"], 0)) for context in told["contexts"]]
        shown.add_row(
            client["name"], str(client["rows"]), *counts, *_label_cells(client), _known(client["from_context"])
        )
    return shown


def _contexts_table(told: dict[str, Any], classes: list[str]) -> RichTable:
    shown = RichTable(title="Contexts", title_justify="left", expand=False)
    for number, head in enumerate(["context", "rows", "used to", *_label_heads(classes)]):
        shown.add_column(head, justify="right" if number else "left")
    for context in told["contexts"]:
        use = "test" if context["held_out"] else "train"
        shown.add_row(context["name"], str(context["rows"]), use, *_label_cells(context))
    return shown


def _relations_table(told: dict[str, Any]) -> RichTable:
    named = ["class"] if told["task"] == "multiclass" else []  # the one that goes with a column most
    title = f"Correlation with the {'class' if named else 'label'} by context, the most changing first"
    shown = RichTable(title=title, title_justify="left", expand=False)
    for number, head in enumerate(["column", *named, *(c["name"] for c in told["contexts"]), "change"]):
        shown.add_column(head, justify="right" if number else "left")
    for relation in told["relations"]:
        values = [f"{value:+.2f}" for value in relation["by_context"].values()]
        shown.add_row(relation["column"], *(relation[head] for head in named), *values, f"{relation['change']:.2f}")
    return shown


def _label_heads(classes: list[str]) -> list[str]:
    return classes if classes else ["label's mean", "deviation"]


def _label_cells(part: dict[str, Any]) -> list[str]:
    if "mean" in part:
        return [f"{part['mean']:.4g}", f"{part['deviation']:.4g}"]
    total = max(sum(part["classes"].values()), 1)
    return [f"{count} ({100 * count / total:.0f} %)" for count in part["classes"].values()]


def _known(score: dict[str, float]) -> str:
    if "explained" in score:
        return f"{100 * score['explained']:.1f} % of variance"
    return f"{100 * score['accuracy']:.1f} % ({100 * score['constant']:.1f} % without)"


def _from_context(told: dict[str, Any]) -> str:
    score = told["from_context"]
    if "explained" in score:
        return f"Knowing the context alone explains {100 * score['explained']:.1f} % of the label's variance."
    return (
        f"Knowing the context alone predicts the label in {100 * score['accuracy']:.1f} % of the rows; "
        f"the most frequent label is right in {100 * score['constant']:.1f} %."
    )
