"""`perinvfl run` and `perinvfl sweep`: train what a file asks for, then show the table."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perinvfl.cli.options import (
    DataRoot,
    ExperimentFile,
    Json,
    Out,
    ProgressOptions,
    Quiet,
    Set,
    Track,
    progress_options,
)
from perinvfl.errors import UserError
from perinvfl.results.table import make_table
from perinvfl.runs.presets import preset_file
from perinvfl.runs.records import read_run
from perinvfl.terminal.tables import show_table, wide_console

if TYPE_CHECKING:
    from perinvfl.runs.experiment import Experiment


def run(
    file: Annotated[Path | None, typer.Argument(help="Experiment file (TOML).")] = None,
    set: Set = None,
    out: Out = Path("runs"),
    data_root: DataRoot = None,
    preset: Annotated[
        str, typer.Option("--preset", help="The settings found for a published table, instead of FILE.")
    ] = "",
    quiet: Quiet = False,
    json: Json = False,
    track: Track = None,
) -> None:
    """Train what FILE or a preset asks for, then show the table. After an interruption the same command resumes."""
    from perinvfl.runs.experiment import read_experiment

    if (file is None) == (not preset):
        raise UserError("Give one of FILE and --preset NAME; `perinvfl list` shows the presets.")
    experiment = read_experiment(file or preset_file(preset), _overrides(set, data_root))
    _train_and_show(experiment, out, progress_options(quiet, json, track), most_together=1)


def sweep(
    file: ExperimentFile,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Settings to draw for each algorithm.")],
    set: Set = None,
    out: Out = Path("runs"),
    data_root: DataRoot = None,
    search_seed: Annotated[int, typer.Option("--search-seed", help="Seed of the random search.")] = 0,
    together: Annotated[
        int, typer.Option("--together", min=1, help="Most trials to train as one program, on a GPU.")
    ] = 64,
    quiet: Quiet = False,
    json: Json = False,
    track: Track = None,
) -> None:
    """Random search over the ranges that `perinvfl list` shows; settings named in FILE stay as they are."""
    from perinvfl.engine.simulation import pick_device
    from perinvfl.runs.experiment import read_experiment
    from perinvfl.runs.search import search

    experiment = search(read_experiment(file, _overrides(set, data_root)), trials, search_seed)
    experiment = dataclasses.replace(experiment, name=f"{experiment.name}-sweep")
    # On a CPU one run already fills the cores, and trials on their own can be resumed on their own.
    on_gpu = pick_device(experiment.trials[0].training.device).type == "cuda"
    _train_and_show(experiment, out, progress_options(quiet, json, track), together if on_gpu else 1)


def _overrides(set: list[str] | None, data_root: Path | None) -> list[str]:
    root = [] if data_root is None else [f'data.data_root="{data_root.resolve()}"']
    return [*(set or []), *root]


def _train_and_show(experiment: "Experiment", out: Path, options: ProgressOptions, most_together: int) -> None:
    from perinvfl.cli.progress import print_json_table, showing_progress
    from perinvfl.runs.train import train

    console, records = wide_console(), out / experiment.name
    with showing_progress(options, experiment, records, console) as watch:
        folders = train(experiment, records, watch, most_together)
    runs = [run for run in map(read_run, folders) if run is not None]
    if all(run.broken is not None for run in runs):
        raise UserError("Every run diverged; smaller learning rates usually help.")
    if options.json:
        print_json_table(runs, records)
    if options.json or options.quiet:
        return
    show_table(console, make_table(runs))
    console.print(f"Records: {records}", highlight=False)
