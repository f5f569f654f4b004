"""Carry out an experiment: `python -m perinvfl.train FILE.toml`.

Needs torch and the standard library only, so it runs on a machine where nothing can be installed.
"""

import argparse
import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from perinvfl.core.commands import guarded
from perinvfl.errors import UserError
from perinvfl.runs.batches import Batch, Dispatcher, InThisProcess
from perinvfl.runs.experiment import Experiment, read_experiment
from perinvfl.runs.facts import run_id
from perinvfl.runs.progress import Lines, Progress
from perinvfl.runs.records import TOGETHER, pack, read_run
from perinvfl.runs.search import batch_trials, search
from perinvfl.runs.tidying import mark_if_unmarked, tidy
from perinvfl.runs.trial import Trial


def train(
    experiment: Experiment,
    out: Path,
    progress: Progress,
    most_together: int = 1,
    dispatcher: Dispatcher = InThisProcess(),
) -> list[Path]:
    """Run every trial that is not finished yet; the folders of all of them, in order."""
    waiting: list[Trial] = []
    for trial in experiment.trials:
        run = read_run(out / trial.folder)
        if run is not None and run.finished:
            mark_if_unmarked(run)
            tidy(run.folder)
            progress.skipped(trial, run.folder)
        else:
            waiting.append(trial)
    order = {trial.id: number for number, trial in enumerate(experiment.trials)}
    begun = _begun_together(experiment, waiting, out)
    taken = {trial.id for group in begun for trial in group}
    rest = tuple(trial for trial in waiting if trial.id not in taken)
    on_gpu = any(dispatcher.uses_gpu(device) for device in {trial.training.device for trial in rest})
    groups = [*begun, *batch_trials(rest, most_together, join_folds=on_gpu)]
    batches = [Batch(group, experiment.name, order) for group in groups]
    for _ in dispatcher.finished(batches, out, progress):
        pass
    return [out / trial.folder for trial in experiment.trials]


def _begun_together(experiment: Experiment, waiting: list[Trial], out: Path) -> list[list[Trial]]:
    """Groups of trials with a checkpoint, whole: a trial that broke meanwhile is still part of its program."""
    known = {trial.id: trial for trial in experiment.trials}
    left = {trial.id for trial in waiting}
    groups = []
    for members in sorted((out / TOGETHER).glob("*.json")):
        ids = _members(members)
        if left & set(ids) and set(ids) <= set(known) and members.with_suffix(".pt").exists():
            groups.append([known[id] for id in ids])
            left -= set(ids)
    return groups


def _members(path: Path) -> list[str]:
    try:
        ids = json.loads(path.read_bytes())
        named = isinstance(ids, list) and all(isinstance(id, str) for id in ids)
        whole = named and run_id({"trials": ids}) == path.stem  # as the group is called
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"{path} is damaged; delete it to train the trials that it named again.")
    return ids


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perinvfl.train", description=__doc__)
    parser.add_argument("file", type=Path, help="experiment file")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the records")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace one setting")
    parser.add_argument("--trials", type=int, default=0, help="random search with this many settings per algorithm")
    parser.add_argument("--search-seed", type=int, default=0, help="seed of the random search")
    parser.add_argument("--together", type=int, default=64, help="most trials in one program of a search")
    parser.add_argument("--pack", type=Path, help="also write the records of all runs into this one file (.jsonl.xz)")
    given = parser.parse_args(arguments)
    again = sys.argv[1:] if arguments is None else arguments
    return guarded(lambda: _main(given), shlex.join([sys.executable, "-m", "perinvfl.train", *again]))


def _main(given: Any) -> int:
    experiment = read_experiment(given.file, given.set)
    if given.trials:
        experiment = search(experiment, given.trials, given.search_seed)
        experiment = dataclasses.replace(experiment, name=f"{experiment.name}-sweep")
    folders = train(experiment, given.out / experiment.name, Lines(), most_together=given.together)
    if given.pack is not None:
        pack([run for run in map(read_run, folders) if run is not None], given.pack)
    return 0
