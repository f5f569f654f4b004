"""Re-create a published table: search, leave one client out, then the chosen settings with fresh seeds.

`python -m perinvfl.reproduce experiments/rc_mnist.toml --out results/rc_mnist`

Packed files, one for each of these; a run that is in one of them is not made again. Every method gets the same number
of settings, rounds, folds and seeds. Torch and the standard library only.
"""

import argparse
import copy
import dataclasses
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from perinvfl.checkpoint import writing
from perinvfl.errors import UserError
from perinvfl.experiment import Effort, Experiment, Trial, build_experiment, read_experiment
from perinvfl.records import Run, pack, read_packed, read_run
from perinvfl.select import RULES, Choice, Rule, View, choose, view
from perinvfl.sweep import search
from perinvfl.train import Plain, guarded, train

SEARCH, LEFT_OUT, CHOSEN, LONGER = (f"{name}.jsonl.xz" for name in ("search", "left_out", "chosen", "longer"))
ORACLE = "oracle"  # the last of the rules, and the only one that knows test results


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


@dataclass(frozen=True)
class Published:
    """The records behind one table."""

    search: list[Run]
    left_out: list[Run]
    chosen: list[Run]

    def methods(self) -> list[str]:
        return list(dict.fromkeys(method_of(run) for run in self.search))

    def rules(self) -> list[str]:
        """The rules that find something to look at in these records."""
        return [name for name, rule in RULES.items() if any(view(rule, 0, [run]) for run in self.looked_at(rule))]

    def looked_at(self, rule: Rule) -> list[Run]:
        """Where a rule looks.

        Two rules look at the very runs they are reported on: the oracle, as someone does who tunes on the test
        contexts, and the worst inferred context, which looks at the clients' own held-out data, of which every run has
        its own. The best of a search on one seed is often luck, and does not come again with another.

        The latter knows no test data, so it does not see settings that have fresh seeds for the oracle's sake alone.
        """
        if rule.name == "leave-one-client-out":
            return self.left_out
        if not rule.on_fresh_seeds or not self.chosen:
            return self.search
        if rule.name == ORACLE:
            return self.chosen
        return [run for run in self.chosen if (method_of(run), setting_of(run)) in self._known_without_tests]

    @cached_property
    def _known_without_tests(self) -> frozenset[tuple[str, int]]:
        """The settings that have fresh seeds for the sake of rules without test data, which come before the oracle's.

        How many finalists there were is not on record; it shows in the order of the runs.
        """
        searched = Published(self.search, self.left_out, [])
        names = [name for name in searched.rules() if name != ORACLE]
        made = list(dict.fromkeys((method_of(run), setting_of(run)) for run in self.chosen))
        known = list(_wanted(searched, names, 0))
        if not any(RULES[name].on_fresh_seeds for name in names):
            return frozenset(known)  # the number of finalists changes nothing
        for finalists in range(1, len(made) + 1):
            wanted = list(_wanted(searched, names, finalists))
            if len(wanted) > len(made):
                break
            if wanted == made[: len(wanted)]:
                known = wanted
        return frozenset(known)

    def choices(self, rule_name: str) -> dict[str, Choice]:
        """What a rule takes for each method; what `source` takes for one that has nothing for the rule to look at.

        A model of the shape alone has no shortcut that a reference model could show.
        """
        taken = {}
        for method in self.methods():
            for name in (rule_name, "source"):
                seen = _views(name, [run for run in self.looked_at(RULES[name]) if method_of(run) == method])
                if seen:
                    taken[method] = choose(seen)
                    break
            else:
                raise UserError(f"No record of {method} holds what {rule_name} looks at.")
        return taken

    def runs_of(self, method: str, setting: int) -> list[Run]:
        """The fresh runs of one setting of a method."""
        return [run for run in self.chosen if method_of(run) == method and setting_of(run) == setting]

    def taken(self, rule_name: str, to_the_end: bool = False) -> list[Run]:
        """The fresh runs of the setting that a rule takes of each method, up to the round it takes or to the end."""
        runs = []
        for method, choice in self.choices(rule_name).items():
            last = None if to_the_end else choice.round
            runs += [_as(run, method, last) for run in self.runs_of(method, choice.setting)]
        return runs

    def searched_best(self, rule_name: str) -> list[Run]:
        """The searched runs, each up to the round that is best by a rule; without those it can say nothing about."""
        runs = []
        for run in self.search:
            seen = view(RULES[rule_name], setting_of(run), [run])
            if seen is not None:
                runs.append(_as(run, _label(run), max(seen.scores, key=lambda round: seen.scores[round])))
        return runs


def published_folders(place: Path) -> dict[str, Path]:
    """Where the records of a published table lie, if that is what is meant: by its name or by its folder.

    A table may be made of several, one folder each.
    """
    beside_source = Path(__file__).parents[2] / "results"
    for folder in (place, Path("results") / place, beside_source / place):
        if (folder / SEARCH).exists():
            return {folder.name: folder}
        found = {inner.parent.name: inner.parent for inner in sorted(folder.glob(f"*/{SEARCH}"))}
        if found:
            return found
    return {}


def read_published(folder: Path) -> Published:
    missing = [name for name in (SEARCH, CHOSEN) if not (folder / name).exists()]
    if missing:
        raise UserError(
            f"{folder} holds no {missing[0]}; `python -m perinvfl.reproduce FILE.toml --out {folder}` makes it."
        )

    def read(name: str) -> list[Run]:
        return read_packed(folder / name) if (folder / name).exists() else []

    return Published(read(SEARCH), read(LEFT_OUT), read(CHOSEN) + read(LONGER))


def default_rule(*published: Published) -> str:
    """The honest rule where every table was made for it, else what the paper's "tuned optimal" amounts to."""
    honest = "worst-inferred-context"
    return honest if all(honest in records.rules() for records in published) else "oracle"


def method_of(run: Run) -> str:
    """The label without the number of the setting: "IRM #7 without 2" is a run of IRM."""
    return _label(run).partition(" #")[0]


def setting_of(run: Run) -> int:
    return int(_label(run).partition(" #")[2].split()[0])


def reproduce(
    experiment: Experiment, out: Path, effort: Effort, together: int, say: Callable[[str], None]
) -> Published:
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
    folds = _folds(Published(searched, [], []), effort.finalists) if effort.leave_out else []
    left_out = stage(LEFT_OUT, folds) if folds else []
    found = Published(searched, left_out, [])
    chosen = stage(CHOSEN, _fresh(found, effort.finalists, effort.seeds))
    found = dataclasses.replace(found, chosen=chosen)
    if not effort.longer:
        return found
    longer = stage(LONGER, _longer(found, effort))
    return dataclasses.replace(found, chosen=chosen + longer)


def _views(rule_name: str, runs: list[Run]) -> list[View]:
    settings = dict.fromkeys(setting_of(run) for run in runs)
    views = [
        view(RULES[rule_name], setting, [run for run in runs if setting_of(run) == setting]) for setting in settings
    ]
    return [seen for seen in views if seen is not None]


def _finalists(found: Published, rule_name: str, count: int) -> list[Run]:
    """The searched runs of the best settings of each method by a rule."""
    best = []
    for method in found.methods():
        runs = [run for run in found.search if method_of(run) == method]
        views = [(view(RULES[rule_name], setting_of(run), [run]), run) for run in runs]
        seen = [(max(looked.scores.values()), run) for looked, run in views if looked is not None]
        best += [run for _, run in sorted(seen, key=lambda pair: -pair[0])[:count]]
    return best


def _folds(found: Published, finalists: int) -> list[Trial]:
    """The best settings of each method by `source`, once for each client left out."""
    return [
        _again(run, run.start["asked"]["seed"], f"{_label(run)} without {client}", leave_out=client)
        for run in _finalists(found, "source", finalists)
        for client in range(run.start["clients"])
    ]


def _fresh(found: Published, finalists: int, seeds: Sequence[int]) -> list[Trial]:
    """Every setting that a rule takes, by its best or by its last round, and the finalists of rules that look at fresh
    seeds, with each of those."""
    by_name = {(method_of(run), setting_of(run)): run for run in found.search}
    return [_again(by_name[key], seed) for key in _wanted(found, found.rules(), finalists) for seed in seeds]


def _longer(found: Published, effort: Effort) -> list[Trial]:
    """The oracle's best settings of each method again, with more rounds.

    With their rounds they are settings of their own, and are counted on from those of the search.
    """
    trials = []
    for method in found.methods():
        runs = [run for run in found.chosen if method_of(run) == method]
        best = sorted(_views(ORACLE, runs), key=lambda seen: -max(seen.scores.values()))[: effort.longer_settings]
        for run in runs:
            if setting_of(run) in [seen.setting for seen in best]:
                number = 1 + max(map(setting_of, found.search)) + setting_of(run)
                trials.append(_again(run, run.start["asked"]["seed"], f"{method} #{number}", rounds=effort.longer))
    return trials


def _wanted(found: Published, rule_names: Sequence[str], finalists: int) -> dict[tuple[str, int], None]:
    """Methods and settings to be made again for these rules, in order."""
    wanted: dict[tuple[str, int], None] = {}
    for name in rule_names:
        for method, choice in found.choices(name).items():
            wanted[method, choice.setting] = wanted[method, choice.last_setting] = None
        if RULES[name].on_fresh_seeds:
            for run in _finalists(found, name, finalists):
                wanted[method_of(run), setting_of(run)] = None
    return wanted


def _again(run: Run, seed: int, label: str | None = None, rounds: int | None = None, **data: Any) -> Trial:
    """The trial a run was, with another seed, name, number of rounds or other data."""
    asked = run.start["asked"]
    training = asked["training"] | ({} if rounds is None else {"rounds": rounds})
    table = {
        **asked,
        "data": asked["data"] | data,
        "training": training,
        "algorithm": [asked["algorithm"] | {"label": label or _label(run)}],
        "seeds": [seed],
    }
    table.pop("seed")
    return build_experiment(table).trials[0]


def _as(run: Run, label: str, last: int | None) -> Run:
    """A run under another label, up to a round."""
    start = copy.deepcopy(run.start)
    start["asked"]["algorithm"]["label"] = label
    later = [] if last is None else [event for event in run.evaluations if event["round"] > last]
    return Run(run.folder, [start, *(event for event in run.events[1:] if event not in later)])


def _label(run: Run) -> str:
    return run.start["asked"]["algorithm"]["label"]


def _planned(given: argparse.Namespace) -> tuple[Experiment, Effort]:
    experiment = read_experiment(given.file, given.set)
    effort = experiment.effort
    if given.reduced:
        smaller = REDUCED_PHOTOGRAPHS if experiment.trials[0].model.kind == "resnet18" else REDUCED_DIGITS
        experiment = read_experiment(given.file, [*smaller, *given.set])
        effort = dataclasses.replace(REDUCED, leave_out=effort.leave_out)
    named = {key: getattr(given, key) for key in ("trials", "finalists") if getattr(given, key) is not None}
    if given.seeds is not None:
        try:
            named["seeds"] = tuple(int(seed) for seed in given.seeds.split(","))
        except ValueError:
            raise UserError(f"--seeds {given.seeds}: must be whole numbers with commas between them.") from None
    return experiment, dataclasses.replace(effort, **named)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perinvfl.reproduce", description=__doc__)
    parser.add_argument("file", type=Path, help="experiment file of a table, such as experiments/rc_mnist.toml")
    parser.add_argument("--out", type=Path, required=True, help="folder for the three packed files")
    parser.add_argument("--reduced", action="store_true", help="a small version that a laptop finishes in minutes")
    parser.add_argument("--finalists", type=int, help="settings of each method tried with each client left out")
    parser.add_argument("--trials", type=int, help="settings of each method in the search")
    parser.add_argument("--seeds", help="fresh seeds for the settings chosen, such as 101,102,103")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace one setting")
    parser.add_argument("--together", type=int, default=64, help="most trials in one program")
    given = parser.parse_args(arguments)

    def work() -> int:
        experiment, effort = _planned(given)
        reproduce(experiment, given.out, effort, given.together, lambda line: print(line, flush=True))
        return 0

    again = sys.argv[1:] if arguments is None else arguments
    return guarded(work, shlex.join([sys.executable, "-m", "perinvfl.reproduce", *again]))


if __name__ == "__main__":
    sys.exit(main())
