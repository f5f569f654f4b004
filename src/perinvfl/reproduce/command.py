"""Re-create a published table: search, leave one client out, then the chosen settings with fresh seeds.

`python -m perinvfl.reproduce experiments/rc_mnist.toml --out results/rc_mnist`

Packed files, one for each of these; a run that is in one of them is not made again. Every method gets the same number
of settings, rounds, folds and seeds. Torch and the standard library only.
"""

import argparse
import dataclasses
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from perinvfl.core.commands import guarded
from perinvfl.core.saying import say
from perinvfl.errors import UserError
from perinvfl.reproduce.cluster_options import add_cluster_options, dispatcher_of
from perinvfl.reproduce.stages import check_named, reproduce
from perinvfl.runs.experiment import Experiment, read_experiment
from perinvfl.runs.facts import Effort

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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perinvfl.reproduce", description=__doc__)
    parser.add_argument("file", type=Path, help="experiment file of a table, such as experiments/rc_mnist.toml")
    parser.add_argument("--out", type=Path, required=True, help="folder for the packed files")
    parser.add_argument("--reduced", action="store_true", help="a small version that a laptop finishes in minutes")
    parser.add_argument("--finalists", type=int, help="settings of each method tried with each client left out")
    parser.add_argument("--trials", type=int, help="settings of each method in the search")
    parser.add_argument("--seeds", help="fresh seeds for the settings chosen, such as 101,102,103")
    parser.add_argument("--only", action="append", default=[], metavar="METHOD", help="this row of the table alone")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace one setting")
    parser.add_argument("--together", type=int, default=64, help="most trials in one program")
    add_cluster_options(parser)
    given = parser.parse_args(arguments)

    def work() -> int:
        began = time.perf_counter()
        experiment, effort = _planned(given)
        with dispatcher_of(given) as dispatcher:
            reproduce(experiment, given.out, effort, given.together, say, dispatcher)
        say(f"Done in {time.perf_counter() - began:.0f} s; `perinvfl table {shlex.quote(str(given.out))}` shows it.")
        return 0

    again = sys.argv[1:] if arguments is None else arguments
    return guarded(work, shlex.join([sys.executable, "-m", "perinvfl.reproduce", *again]))


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
        named["seeds"] = numbers_of(given.seeds)
    if effort.leave_out and any(trial.contexts.align != "nothing" for trial in experiment.trials):
        raise UserError("contexts.align: a client that is left out takes no view; set search.leave_out = false.")
    return experiment, dataclasses.replace(effort, **named)


def numbers_of(seeds: str) -> tuple[int, ...]:
    try:
        return tuple(int(seed) for seed in seeds.split(","))
    except ValueError:
        raise UserError(f"--seeds {seeds}: must be whole numbers with commas between them.") from None


def _only(experiment: Experiment, methods: Sequence[str]) -> Experiment:
    check_named("only", methods, list(dict.fromkeys(trial.label for trial in experiment.trials)), experiment.name)
    return dataclasses.replace(experiment, trials=tuple(t for t in experiment.trials if t.label in methods))
