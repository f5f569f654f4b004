"""The command line. Thin: it reads arguments, calls a room, and turns a user's mistake into one sentence."""

import dataclasses
import sys
import typing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

import perinvfl
from perinvfl.algorithms import ALGORITHMS, settings_of
from perinvfl.cli import data, federation, models, report
from perinvfl.cli.live import Json, Quiet, Telling, Track, end_json, resume_command, telling, watching
from perinvfl.core.commands import STOPPED, guarded
from perinvfl.data.registry import BENCHMARKS
from perinvfl.engine.simulation import Training, pick_device
from perinvfl.errors import UserError
from perinvfl.flower.settings import FederationSettings
from perinvfl.learning.groups import Score
from perinvfl.learning.shortcut import ContextSettings
from perinvfl.models import ModelSettings
from perinvfl.results.search_records import default_rule, published_folders, read_published
from perinvfl.results.selection import RULES
from perinvfl.results.table import make_table, published_table, render, several_tables
from perinvfl.runs.experiment import Experiment, read_experiment
from perinvfl.runs.presets import preset_file, preset_line, preset_names
from perinvfl.runs.records import find_runs, read_run
from perinvfl.runs.search import search
from perinvfl.runs.train import train
from perinvfl.terminal.display import show_table, wide_console

app = typer.Typer(
    help="Federated learning that is personal to each client and still holds when the world shifts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")

File = Annotated[Path, typer.Argument(help="Experiment file (TOML).")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace one setting, such as training.rounds=20."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the records; each experiment gets a folder inside.")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder of the official idx files, instead of the embedded images.")
]


class Form(StrEnum):
    md = "md"
    csv = "csv"
    latex = "latex"
    json = "json"


class Scores(StrEnum):
    accuracy = "accuracy"
    balanced = "balanced"
    worst_group = "worst-group"


class Kind(StrEnum):
    spectrum = "spectrum"
    learning = "learning"
    sensitivity = "sensitivity"
    clients = "clients"
    all = "all"


@app.command()
def run(
    file: Annotated[Path | None, typer.Argument(help="Experiment file (TOML).")] = None,
    set: Set = None,
    out: Out = Path("runs"),
    data_root: DataRoot = None,
    preset: Annotated[
        str, typer.Option("--preset", help="Settings found for a published table, instead of FILE.")
    ] = "",
    quiet: Quiet = False,
    json: Json = False,
    track: Track = None,
) -> None:
    """Train what FILE or a preset asks for, then show the table. Killed and started again, it goes on where it was."""
    if (file is None) == (not preset):
        raise UserError("Give one of FILE and --preset NAME; `perinvfl list` shows the presets.")
    experiment = read_experiment(file or preset_file(preset), _overrides(set, data_root))
    _carry_out(experiment, out / experiment.name, telling(quiet, json, track), most_together=1)


@app.command()
def sweep(
    file: File,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Settings to draw for each algorithm.")],
    set: Set = None,
    out: Out = Path("runs"),
    data_root: DataRoot = None,
    search_seed: Annotated[int, typer.Option("--search-seed", help="Seed of the draw.")] = 0,
    together: Annotated[int, typer.Option("--together", min=1, help="Most trials in one program, on a GPU.")] = 64,
    quiet: Quiet = False,
    json: Json = False,
    track: Track = None,
) -> None:
    """Random search over the ranges that `perinvfl list` shows; settings named in FILE stay as they are."""
    experiment = search(read_experiment(file, _overrides(set, data_root)), trials, search_seed)
    experiment = dataclasses.replace(experiment, name=f"{experiment.name}-sweep")
    # On a CPU one run already fills the cores, and trials on their own can be resumed on their own.
    on_gpu = pick_device(experiment.trials[0].training.device).type == "cuda"
    _carry_out(experiment, out / experiment.name, telling(quiet, json, track), together if on_gpu else 1)


@app.command()
def table(
    place: Annotated[
        Path,
        typer.Argument(
            help="A published table (rc_mnist, rc_fmnist, ablation, beyond, waterbird), or a folder with runs."
        ),
    ],
    rule: Annotated[
        str, typer.Option("--rule", help=f"For published tables: {', '.join(RULES)}. Else the one it is about.")
    ] = "",
    format: Annotated[Form | None, typer.Option("--format", help="For files; without it, a table for the eye.")] = None,
    score: Annotated[
        Scores | None,
        typer.Option(
            "--score",
            help="What the cases show, where tests have groups. Else accuracy; of several tables below each other, "
            "balanced.",
        ),
    ] = None,
) -> None:
    """Show a published table or that of finished runs. Nothing is trained."""
    published = {name: read_published(folder) for name, folder in published_folders(place).items()}
    shown: Score = score.value if score else "balanced" if len(published) > 1 else "accuracy"
    if not published:
        made = make_table(find_runs(place), shown)
    elif len(published) == 1:
        records = next(iter(published.values()))
        made = published_table(records, rule or default_rule(records), shown)
    else:
        made = several_tables(place.name, published, rule or default_rule(*published.values()), shown)
    if format is None:
        show_table(wide_console(), made)
    else:
        print(render(made, format.value))


@app.command()
def plot(
    folder: Annotated[
        Path, typer.Argument(help="Folder with runs, such as runs/demo, a packed file, or a published table.")
    ],
    kind: Annotated[Kind, typer.Option("--kind", help="What to show.")] = Kind.all,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the files; else figures, in FOLDER if it is one.")
    ] = None,
    rule: Annotated[
        str, typer.Option("--rule", help="For published tables: the selection rule. Else the one it is about.")
    ] = "",
) -> None:
    """Draw figures of finished runs or of a published table as SVG, PNG and a page that works offline.

    Nothing is trained.
    """
    from perinvfl.plots.charts import make_charts, published_charts  # an extra, and slow to import
    from perinvfl.plots.files import write_chart

    published = published_folders(folder)
    if published:
        charts = {}
        for name, place in published.items():
            records = read_published(place)
            for shown, chart in published_charts(records, rule or default_rule(records), kind.value).items():
                stem = name if len(published) == 1 else f"{folder.name}-{name}"
                charts[f"{stem}-{shown}"] = chart
    else:
        runs = find_runs(folder)
        charts = {
            f"{runs[0].start['experiment']}-{name}": chart for name, chart in make_charts(runs, kind.value).items()
        }
    beside = folder if folder.is_dir() else folder.parent
    for stem, chart in charts.items():
        for path in write_chart(chart, (out or beside / "figures") / stem):
            print(path)


models.register(app)
report.register(app)


@app.command("list")
def list_() -> None:
    """Algorithms, benchmarks and presets, with settings, defaults, ranges and the paper's symbols."""
    console = wide_console()
    for name, algorithm in ALGORITHMS.items():
        fields = settings_of(algorithm)
        _show_settings(console, f"algorithm {name}: {algorithm.title} ({algorithm.paper})", fields)
    for name, benchmark in BENCHMARKS.items():
        _show_settings(console, f"benchmark {name}: {benchmark.doc}", dataclasses.fields(benchmark.settings))
    _show_settings(console, "[contexts]", dataclasses.fields(ContextSettings))
    _show_settings(console, "[model]", dataclasses.fields(ModelSettings))
    _show_settings(console, "[training]", dataclasses.fields(Training))
    _show_settings(console, "[federation]", dataclasses.fields(FederationSettings))
    shown = RichTable("preset", "what it is", title="presets", title_justify="left", title_style="bold")
    for name in preset_names():
        shown.add_row(name, preset_line(name))
    console.print(shown)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None:
    if version:
        print(perinvfl.__version__)
        raise typer.Exit


def _overrides(set: list[str] | None, data_root: Path | None) -> list[str]:
    root = [] if data_root is None else [f'data.data_root="{data_root.resolve()}"']
    return [*(set or []), *root]


def _carry_out(experiment: Experiment, out: Path, told: Telling, most_together: int) -> None:
    console = wide_console()
    with watching(told, experiment, out, console) as watch:
        folders = train(experiment, out, watch, most_together)
    runs = [run for run in map(read_run, folders) if run is not None]
    if all(run.broken is not None for run in runs):
        raise UserError("Every run became infinite; smaller learning rates are the usual cure.")
    if told.json:
        end_json(runs, out)
    if told.json or told.quiet:
        return
    show_table(console, make_table(runs))
    console.print(f"Records: {out}", highlight=False)


def _show_settings(console: Console, title: str, fields: Any) -> None:
    shown = RichTable(title=escape(title), title_justify="left", title_style="bold", expand=False)
    for column in ("setting", "symbol", "default", "allowed", "search range", "meaning"):
        shown.add_column(column, overflow="fold")
    for field in fields:
        kept = field.metadata
        ranged = kept.get("search")
        default = "" if field.default is dataclasses.MISSING else _plain(field.default)
        span = str(ranged) if ranged else ""
        shown.add_row(field.name, kept.get("symbol", ""), default, _allowed(field), span, kept.get("doc", ""))
    console.print(shown)


def _allowed(field: Any) -> str:
    """The choices or bounds a setting was declared with."""
    if typing.get_origin(field.type) is Literal:
        return ", ".join(typing.get_args(field.type))
    signs = {"least": "≥", "above": ">", "most": "≤"}
    return ", ".join(
        f"{sign} {field.metadata[key]:g}" for key, sign in signs.items() if field.metadata.get(key) is not None
    )


def _plain(value: Any) -> str:
    """A default as it would stand in a TOML file."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_plain, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def call(arguments: list[str]) -> int:
    """The command line with these arguments; its exit code."""
    return guarded(lambda: _call(arguments), resume_command(arguments))


def _call(arguments: list[str]) -> int:
    try:
        code = app(arguments, standalone_mode=False)
    except click.ClickException as error:  # an unknown command or option
        error.show()
        return error.exit_code
    if code == STOPPED:
        raise KeyboardInterrupt  # typer has turned it into a code
    return code if isinstance(code, int) else 0


def main() -> None:
    sys.exit(call(sys.argv[1:]))
