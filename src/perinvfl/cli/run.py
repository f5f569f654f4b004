"""`perinvfl run` and `perinvfl sweep`: train what a file asks for, then show the table."""

import dataclasses
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perinvfl.cli.options import (
    Cores,
    DataRoot,
    ExperimentFile,
    Json,
    On,
    Out,
    ProgressOptions,
    Quiet,
    Set,
    Track,
    progress_options,
)
from perinvfl.cli.progress import print_json_table, showing_progress
from perinvfl.core.files import write_atomically
from perinvfl.core.importing import importing
from perinvfl.core.saying import say
from perinvfl.core.toml_text import toml_text
from perinvfl.errors import UserError
from perinvfl.results.ranking import NOTHING_HELD_OUT, best_experiment, check_applies, rank, ranking_json, ranking_text
from perinvfl.results.selection import RULES, rule_named
from perinvfl.results.table import make_table
from perinvfl.runs.presets import demo_file, preset_file, preset_names
from perinvfl.runs.records import Run, read_run
from perinvfl.terminal.console import wide_console
from perinvfl.terminal.tables import show_table, show_text

if TYPE_CHECKING:
    from perinvfl.runs.batches import Dispatcher
    from perinvfl.runs.experiment import Experiment
    from perinvfl.tuning.search import Search


class Sampler(StrEnum):
    random = "random"
    optuna = "optuna"


def run(
    file: Annotated[Path | None, typer.Argument(help="Experiment file (TOML).")] = None,
    set: Set = None,
    out: Out = Path("runs"),
    data_root: DataRoot = None,
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            help="The settings found for a published table, instead of FILE.",
            autocompletion=lambda incomplete: [name for name in preset_names() if name.startswith(incomplete)],
        ),
    ] = "",
    quiet: Quiet = False,
    json: Json = False,
    track: Track = None,
    on: On = "",
    cores: Cores = 1,
) -> None:
    """Train what FILE or a preset asks for, then show the table. After an interruption the same command resumes."""
    with importing():
        from perinvfl.cluster.dispatcher import dispatcher_on
        from perinvfl.runs.experiment import read_experiment

    if (file is None) == (not preset):
        raise UserError("Give one of FILE and --preset NAME; `perinvfl list` shows the presets.")
    experiment = read_experiment(file or preset_file(preset), _overrides(set, data_root))
    with dispatcher_on(on, cores) as dispatcher:
        _train_and_show(experiment, out, progress_options(quiet, json, track), dispatcher)


def demo(
    set: Set = None,
    out: Out = Path("runs"),
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train five methods on coloured digits and show the table: one to two minutes on two cores, nothing to download.

    What it trains is an experiment file; `perinvfl list demo` shows it, and Ctrl-C is safe: the same command resumes.
    """
    with importing():
        from perinvfl.runs.batches import InThisProcess
        from perinvfl.runs.experiment import read_experiment

    experiment = read_experiment(demo_file(), _overrides(set, None))
    _train_and_show(experiment, out, progress_options(quiet, json, None), InThisProcess())


def sweep(
    file: ExperimentFile,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Settings to draw for each algorithm.")],
    set: Set = None,
    out: Out = Path("runs"),
    data_root: DataRoot = None,
    rule: Annotated[
        str,
        typer.Option(
            "--rule",
            help=f"How settings are ranked: {', '.join(RULES)}; by default one that looks at no test result.",
        ),
    ] = "",
    search_seed: Annotated[int, typer.Option("--search-seed", help="Seed of the random search.")] = 0,
    together: Annotated[
        int, typer.Option("--together", min=1, help="Largest number of trials to train together on a GPU.")
    ] = 64,
    quiet: Quiet = False,
    json: Json = False,
    track: Track = None,
    on: On = "",
    cores: Cores = 1,
    sampler: Annotated[
        Sampler, typer.Option("--sampler", help="Draw settings at random, or let Optuna learn from earlier ones.")
    ] = Sampler.random,
    prune: Annotated[
        bool,
        typer.Option("--prune/--no-prune", help="Optuna: stop settings that are below the median of earlier ones."),
    ] = True,
) -> None:
    """Search for good settings, in the ranges that `perinvfl list ALGORITHM` shows; those named in FILE stay fixed.

    Ends with the settings ranked by a rule, and writes the best as best.toml, an experiment file.
    """
    with importing():
        from perinvfl.cluster.dispatcher import dispatcher_on
        from perinvfl.runs.experiment import read_experiment, read_table
        from perinvfl.runs.search import search

    named = rule_named(rule) if rule else None  # before anything is trained
    overrides, options = _overrides(set, data_root), progress_options(quiet, json, track)
    given = read_experiment(file, overrides)
    if sampler == Sampler.optuna:
        from perinvfl.tuning.search import Search, rule_for

        asked = Search(trials, search_seed, rule_for(given, rule), prune)
        with dispatcher_on(on, cores) as dispatcher:
            runs, records = _tune(given, asked, out, options, dispatcher)
        _show_ranking(runs, records, asked.rule.name, read_table(file, overrides), options)
        return
    if named is not None:
        check_applies(named, given)
    experiment = search(given, trials, search_seed)
    experiment = dataclasses.replace(experiment, name=f"{experiment.name}-sweep")
    with dispatcher_on(on, cores) as dispatcher:
        # On a CPU one run already fills the cores, and trials on their own can be resumed on their own.
        on_gpu = dispatcher.uses_gpu(experiment.trials[0].training.device)
        _say_if_unranked(rule, given)
        runs = _train(experiment, out, options, together if on_gpu else 1, dispatcher)
    _show_ranking(runs, out / experiment.name, rule, read_table(file, overrides), options)


def _say_if_unranked(rule: str, given: "Experiment") -> None:
    """Before the training, not only behind it."""
    if not rule and any(trial.federation().validation is None for trial in given.trials):
        say(NOTHING_HELD_OUT, stderr=True)


def _show_ranking(runs: list[Run], records: Path, rule: str, table: dict[str, Any], options: ProgressOptions) -> None:
    """The ranking, and the winner as a file; where nothing was held out to rank by, the plain table and why."""
    console, best, ranking = wide_console(), records / "best.toml", None
    try:
        ranking = rank(runs, rule)
    except UserError as error:
        if rule:
            raise
        unranked = str(error)
    if ranking is not None:
        made = best_experiment(ranking, table, f"{records.name.removesuffix('-sweep').removesuffix('-optuna')}-best")
        about = f"# The best of {len(ranking.ranked)} settings by the rule {ranking.rule.name}: {ranking.rule.doc}.\n"
        write_atomically(best, (about + toml_text(made)).encode())
    if options.json:
        more = {"note": unranked} if ranking is None else {"ranking": ranking_json(ranking), "best": str(best)}
        print_json_table(runs, records, **more)
    if options.json or options.quiet:
        return
    if ranking is None:
        show_table(console, make_table(runs))
        console.print(unranked)
    else:
        show_text(console, ranking_text(ranking))
        console.print(f"Best setting: {best}; `perinvfl run {best}` trains it.", soft_wrap=True)
    console.print(f"Records: {records}")


def _overrides(set: list[str] | None, data_root: Path | None) -> list[str]:
    root = [] if data_root is None else [f'data.data_root="{data_root.resolve()}"']
    return [*(set or []), *root]


def _tune(
    given: "Experiment", asked: "Search", out: Path, options: ProgressOptions, dispatcher: "Dispatcher"
) -> tuple[list[Run], Path]:
    from perinvfl.tuning.search import tune

    experiment = dataclasses.replace(given, name=f"{given.name}-optuna")
    records = out / experiment.name
    _say_notes(experiment, options)
    at_most = dataclasses.replace(experiment, trials=experiment.trials * asked.trials)
    with showing_progress(options, at_most, records, wide_console()) as watch:
        folders = tune(experiment, asked, records, watch, dispatcher)
    return _sound([run for run in map(read_run, folders) if run is not None]), records


def _train(
    experiment: "Experiment", out: Path, options: ProgressOptions, most_together: int, dispatcher: "Dispatcher"
) -> list[Run]:
    from perinvfl.runs.train import train

    records = out / experiment.name
    _say_notes(experiment, options)
    with showing_progress(options, experiment, records, wide_console()) as watch:
        folders = train(experiment, records, watch, most_together, dispatcher)
    return _sound([run for run in map(read_run, folders) if run is not None])


def _say_notes(experiment: "Experiment", options: ProgressOptions) -> None:
    """What to look at in tables that are trained on. What keeps one from being used is said when it is."""
    from perinvfl.data.own.files import FileSettings
    from perinvfl.data.own.notes import notes_on

    tables = dict.fromkeys(trial.data for trial in experiment.trials if isinstance(trial.data, FileSettings))
    with suppress(UserError):
        for note in dict.fromkeys(note for table in tables for note in notes_on(table)) if not options.quiet else ():
            say(f"note: {note}", stderr=options.json)


def _sound(runs: list[Run]) -> list[Run]:
    if all(run.broken is not None for run in runs):
        raise UserError("Every run diverged; smaller learning rates usually help.")
    return runs


def _train_and_show(experiment: "Experiment", out: Path, options: ProgressOptions, dispatcher: "Dispatcher") -> None:
    records, console = out / experiment.name, wide_console()
    runs = _train(experiment, out, options, most_together=1, dispatcher=dispatcher)
    if options.json:
        print_json_table(runs, records)
    if options.quiet:
        for run in runs:
            if run.broken is not None:
                say(run.broken["why"], stderr=True)
    if options.json or options.quiet:
        return
    show_table(console, make_table(runs))
    console.print(f"Records: {records}")
