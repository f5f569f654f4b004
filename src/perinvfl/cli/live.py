"""How work under way is told: bars in a terminal, lines in a log, JSON for scripts, nothing, and trackers besides."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perinvfl.errors import UserError
from perinvfl.results.table import as_json, make_table
from perinvfl.runs.experiment import Experiment
from perinvfl.runs.records import Run
from perinvfl.runs.train import Plain, Watch
from perinvfl.terminal.display import Live
from perinvfl.terminal.track import JsonLines, Several, sinks


class Sink(StrEnum):
    tensorboard = "tensorboard"
    mlflow = "mlflow"


Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Tell everything as JSON, one object a line.")]
Track = Annotated[
    list[Sink] | None, typer.Option("--track", help="Also write to TensorBoard or MLflow; may be given twice.")
]


@dataclass(frozen=True)
class Telling:
    quiet: bool = False
    json: bool = False
    track: tuple[str, ...] = ()


def telling(quiet: bool, json: bool, track: list[Sink] | None) -> Telling:
    if quiet and json:
        raise UserError("--quiet and --json exclude each other; give one of them.")
    return Telling(quiet, json, tuple(dict.fromkeys(sink.value for sink in track or [])))


@contextmanager
def watching(told: Telling, experiment: Experiment, out: Path, console: Console) -> Iterator[Watch]:
    """What `train` tells its progress to."""
    with sinks(told.track, out, experiment.name) as trackers:
        if told.quiet:
            yield Several(trackers)
        elif told.json:
            yield Several([JsonLines(out, say), *trackers])
        elif console.is_terminal:
            with Live(console, [trial.training.rounds for trial in experiment.trials]) as live:
                yield Several([live, *trackers])
        else:
            yield Several([Plain(say), *trackers])


def end_json(runs: list[Run], out: Path) -> None:
    """The last line of the JSON lines: the table."""
    table = as_json(make_table(runs))
    say(json.dumps({"event": "done", "records": str(out), "table": table}, ensure_ascii=False, separators=(",", ":")))


def resume_command(arguments: list[str]) -> str:
    """The command line that goes on with what these arguments began; empty where nothing can be resumed."""
    if not arguments or arguments[0] not in ("run", "sweep"):
        return ""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        begin = [sys.executable, "-m", "perinvfl"]
    else:
        begin = [program.name if shutil.which(program.name) == str(program) else str(program)]
    return shlex.join([*begin, *arguments])


def say(line: str) -> None:
    print(line, flush=True)
