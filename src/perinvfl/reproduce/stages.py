"""Re-create a published table: search, leave one client out, then the chosen settings with fresh seeds.

`python -m perinvfl.reproduce experiments/rc_mnist.toml --out results/rc_mnist`

Packed files, one for each of these; a run that is in one of them is not made again. Every method gets the same number
of settings, rounds, folds and seeds. Torch and the standard library only.
"""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perinvfl.core.commands import guarded
from perinvfl.core.files import writing
from perinvfl.errors import UserError
from perinvfl.results.search_records import (
    CHOSEN,
    LEFT_OUT,
    LONGER,
    ORACLE,
    SEARCH,
    SearchRecords,
    finalists_of,
    label_of,
    method_of,
    setting_of,
    views_of,
    wanted_settings,
)
from perinvfl.runs.experiment import Experiment, build_experiment, read_experiment
from perinvfl.runs.records import Run, pack, read_packed, read_run
from perinvfl.runs.search import search
from perinvfl.runs.train import Plain, train
from perinvfl.runs.trial import Effort, Trial

# A small version that a laptop finishes in minutes.
REDUCED = Effort(trials=4, finalists=2, seeds=(101, 102))
REDUCED_DIGITS = (
    "training.rounds=60",
    "training.batch_size=500",
    "data.train_per_client=2500",
    "data.holdout=250",
    "data.test_per_client=500",
)
REDUCED_PHOTOGRAPHS = ("training.rounds=20", "training.evaluate_every=10", "training.batch_size=16", "model.width=8")


def reproduce(
    experiment: Experiment, out: Path, effort: Effort, together: int, say: Callable[[str], None]
) -> SearchRecords:
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)

    def stage(name: str, trials: Sequence[Trial]) -> list[Run]:
        path = out / name
        made = {run.start["id"]: run for run in read_packed(path)} if path.exists() else {}
        missing = tuple(trial for trial in trials if trial.id not in made)
        say(f"{path}: {len(trials)} runs, {len(trials) - len(missing)} of them there already")
        if missing:
            folders = train(Experiment(experiment.name, missing), out / name.partition(".")[0], Plain(say), together)
            made |= {run.start["id"]: run for run in map(read_run, folders) if run is not None}
            pack([made[trial.id] for trial in trials], path)
        return [made[trial.id] for trial in trials]

    searched = stage(SEARCH, search(experiment, effort.trials, search_seed=0).trials)
    folds = _folds(SearchRecords(searched, [], []), effort.finalists) if effort.leave_out else []
    left_out = stage(LEFT_OUT, folds) if folds else []
    found = SearchRecords(searched, left_out, [])
    chosen = stage(CHOSEN, _fresh(found, effort.finalists, effort.seeds))
    found = dataclasses.replace(found, chosen=chosen)
    if not effort.longer:
        return found
    longer = stage(LONGER, _longer(found, effort))
    return dataclasses.replace(found, chosen=chosen + longer)


def _folds(found: SearchRecords, finalists: int) -> list[Trial]:
    """The best settings of each method by `source`, once for each client left out."""
    return [
        _again(run, run.start["asked"]["seed"], f"{label_of(run)} without {client}", leave_out=client)
        for run in finalists_of(found, "source", finalists)
        for client in range(run.start["clients"])
    ]


def _fresh(found: SearchRecords, finalists: int, seeds: Sequence[int]) -> list[Trial]:
    """Every setting that a rule takes, by its best or by its last round, and the finalists of rules that look at fresh
    seeds, with each of those."""
    by_name = {(method_of(run), setting_of(run)): run for run in found.search}
    return [_again(by_name[key], seed) for key in wanted_settings(found, found.rules(), finalists) for seed in seeds]


def _longer(found: SearchRecords, effort: Effort) -> list[Trial]:
    """The oracle's best settings of each method again, with more rounds.

    With their rounds they are settings of their own, and are counted on from those of the search.
    """
    trials = []
    for method in found.methods():
        runs = [run for run in found.chosen if method_of(run) == method]
        best = sorted(views_of(ORACLE, runs), key=lambda seen: -seen.best)[: effort.longer_settings]
        for run in runs:
            if setting_of(run) in [seen.setting for seen in best]:
                number = 1 + max(map(setting_of, found.search)) + setting_of(run)
                trials.append(_again(run, run.start["asked"]["seed"], f"{method} #{number}", rounds=effort.longer))
    return trials


def _again(run: Run, seed: int, label: str | None = None, rounds: int | None = None, **data: Any) -> Trial:
    """The trial a run was, with another seed, name, number of rounds or other data."""
    asked = run.start["asked"]
    training = asked["training"] | ({} if rounds is None else {"rounds": rounds})
    table = {
        **asked,
        "data": asked["data"] | data,
        "training": training,
        "algorithm": [asked["algorithm"] | {"label": label or label_of(run)}],
        "seeds": [seed],
    }
    table.pop("seed")
    return build_experiment(table).trials[0]


def _planned(given: argparse.Namespace) -> tuple[Experiment, Effort]:
    experiment = read_experiment(given.file, given.set)
    effort = experiment.effort
    if given.reduced:
        smaller = REDUCED_PHOTOGRAPHS if experiment.trials[0].model.kind == "resnet18" else REDUCED_DIGITS
        experiment = read_experiment(given.file, [*smaller, *given.set])
        effort = dataclasses.replace(REDUCED, leave_out=effort.leave_out)
    if given.only:
        experiment = _only(experiment, given.only)
    named = {key: getattr(given, key) for key in ("trials", "finalists") if getattr(given, key) is not None}
    if given.seeds is not None:
        try:
            named["seeds"] = tuple(int(seed) for seed in given.seeds.split(","))
        except ValueError:
            raise UserError(f"--seeds {given.seeds}: must be whole numbers with commas between them.") from None
    if effort.leave_out and any(trial.contexts.align != "nothing" for trial in experiment.trials):
        raise UserError("contexts.align: a client that is left out takes no view; set search.leave_out = false.")
    return experiment, dataclasses.replace(effort, **named)


def _only(experiment: Experiment, methods: Sequence[str]) -> Experiment:
    known = list(dict.fromkeys(trial.label for trial in experiment.trials))
    for method in methods:
        if method not in known:
            raise UserError(f'--only "{method}": {experiment.name} has {", ".join(known)}.')
    return dataclasses.replace(experiment, trials=tuple(t for t in experiment.trials if t.label in methods))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perinvfl.reproduce", description=__doc__)
    parser.add_argument("file", type=Path, help="experiment file of a table, such as experiments/rc_mnist.toml")
    parser.add_argument("--out", type=Path, required=True, help="folder for the three packed files")
    parser.add_argument("--reduced", action="store_true", help="a small version that a laptop finishes in minutes")
    parser.add_argument("--finalists", type=int, help="settings of each method tried with each client left out")
    parser.add_argument("--trials", type=int, help="settings of each method in the search")
    parser.add_argument("--seeds", help="fresh seeds for the settings chosen, such as 101,102,103")
    parser.add_argument("--only", action="append", default=[], metavar="METHOD", help="this row of the table alone")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace one setting")
    parser.add_argument("--together", type=int, default=64, help="most trials in one program")
    given = parser.parse_args(arguments)

    def work() -> int:
        experiment, effort = _planned(given)
        reproduce(experiment, given.out, effort, given.together, lambda line: print(line, flush=True))
        return 0

    again = sys.argv[1:] if arguments is None else arguments
    return guarded(work, shlex.join([sys.executable, "-m", "perinvfl.reproduce.stages", *again]))


if __name__ == "__main__":
    sys.exit(main())
