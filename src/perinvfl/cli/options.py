"""Options that several commands take."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from perinvfl.errors import UserError
from perinvfl.runs.picking import Pick


class TextOrJson(StrEnum):
    text = "text"
    json = "json"


class Tracker(StrEnum):
    tensorboard = "tensorboard"
    mlflow = "mlflow"


ExperimentFile = Annotated[Path, typer.Argument(help="Experiment file (TOML).")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace one setting, such as training.rounds=20."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the records, with a subfolder for each experiment.")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder of the official idx files, instead of the embedded images.")
]
NO_RULE = (
    "--rule {rule}: a rule chooses among the settings of a search, and {place} holds none; "
    "leave it out, or make a search with `perinvfl sweep`."
)
Rule = Annotated[
    str,
    typer.Option("--rule", help="Selection rule of a published table; by default the one that the table is about."),
]
Method = Annotated[
    list[str] | None,
    typer.Option("--method", help="Only runs of this method, as tables call it; may be given several times."),
]
Seed = Annotated[list[int] | None, typer.Option("--seed", help="Only runs with this seed; may be given several times.")]
Label = Annotated[
    str | None,
    typer.Option(
        "--label", help="Column to predict; of label, client and context, those that are not given are guessed."
    ),
]
Client = Annotated[str | None, typer.Option("--client", help='Column that names the client, or site; "" for none.')]
Context = Annotated[
    str | None, typer.Option("--context", help='Column that names the context, such as a year; "" for none.')
]
Category = Annotated[
    list[str] | None, typer.Option("--category", help="A column of numbers that are codes, not amounts.")
]
Missing = Annotated[
    list[str] | None,
    typer.Option("--missing", metavar="COLUMN=NUMBER", help="A number that stands for a missing value: chol=0."),
]
Format = Annotated[TextOrJson, typer.Option("--format", help="Text for people, JSON for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print progress and the table as JSON, one object per line.")]
Track = Annotated[
    list[Tracker] | None, typer.Option("--track", help="Also log to TensorBoard or MLflow; may be given twice.")
]

On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="CLUSTER",
        help="ray: the Ray cluster at RAY_ADDRESS, or else this machine; ray://HOST:PORT: the cluster at that address.",
    ),
]
Cores = Annotated[int, typer.Option("--cores", min=1, help="Cores of each task, with --on.")]


@dataclass(frozen=True)
class ProgressOptions:
    """How progress is shown: bars or lines unless quiet or as JSON, and logged to trackers besides."""

    quiet: bool = False
    json: bool = False
    trackers: tuple[str, ...] = ()


def missing_values(given: list[str] | None) -> dict[str, Any]:
    """By column, as data.missing_values takes them."""
    found: dict[str, list[float]] = {}
    for text in given or []:
        column, _, value = text.rpartition("=")
        try:
            number = float(value)
            found.setdefault(column, []).append(int(number) if number.is_integer() else number)
        except ValueError:
            column = ""
        if not column:
            raise UserError(f"--missing {text}: write COLUMN=NUMBER, such as chol=0.")
    return {column: values[0] if len(values) == 1 else values for column, values in found.items()}


def pick_of(method: list[str] | None, seed: list[int] | None) -> Pick:
    return Pick(tuple(method or ()), tuple(seed or ()))


def progress_options(quiet: bool, json: bool, track: list[Tracker] | None) -> ProgressOptions:
    if quiet and json:
        raise UserError("--quiet and --json exclude each other; give one of them.")
    return ProgressOptions(quiet, json, tuple(dict.fromkeys(tracker.value for tracker in track or [])))
