"""The stages of a published table: search, leave one client out, the chosen settings with fresh seeds, longer runs.

One packed file for each; a run that is in one of them is not made again. Every method gets the same number of settings,
rounds, folds and seeds. Torch and the standard library only.

A second table may take its settings from the first: what was chosen on small pictures, run on large ones.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perinvfl.core.files import writing
from perinvfl.core.naming import counted
from perinvfl.errors import UserError
from perinvfl.results.search_records import (
    CHOSEN,
    LEFT_OUT,
    LONGER,
    SEARCH,
    SearchRecords,
    Setting,
    finalists_of,
    read_published,
    setting_of,
    views_of,
    wanted_settings,
)
from perinvfl.results.selection import LEAVE_ONE_CLIENT_OUT, ORACLE
from perinvfl.runs.asked import trial_of
from perinvfl.runs.batches import Dispatcher, InThisProcess
from perinvfl.runs.experiment import Experiment
from perinvfl.runs.facts import Effort, Purpose
from perinvfl.runs.progress import Lines
from perinvfl.runs.records import Run, pack, read_packed, read_run
from perinvfl.runs.search import search
from perinvfl.runs.train import train
from perinvfl.runs.trial import Trial


@dataclass(frozen=True)
class Maker:
    """Makes the runs of a table, as far as they are not in its packed files yet."""

    name: str  # of the experiment
    out: Path
    together: int  # most trials in one program
    say: Callable[[str], None]
    dispatcher: Dispatcher
    pack: Callable[[list[Run], Path], None] = pack

    def stage(self, name: str, trials: Sequence[Trial]) -> list[Run]:
        path, packed = self._packed(name)
        missing = tuple(trial for trial in trials if trial.id not in packed)
        self.say(f"{path}: {len(trials)} runs, {len(trials) - len(missing)} of them there already")
        made = dict(packed)
        if missing:
            asked, folder = Experiment(self.name, missing), self.out / name.partition(".")[0]
            began = time.perf_counter()
            folders = train(asked, folder, Lines(self.say), self.together, self.dispatcher)
            self.say(f"{path}: {counted(len(missing), 'run')} made in {time.perf_counter() - began:.0f} s")
            made |= {run.id: run for run in map(read_run, folders) if run is not None}
        runs = [_asked_for_again(made[trial.id], trial) for trial in trials]
        if any(run is not packed.get(run.id) for run in runs):
            asked_for = {run.id: run for run in runs}
            whole = packed.keys() <= asked_for.keys()  # else others are kept, as with --only
            self.pack(runs if whole else list((packed | asked_for).values()), path)
        return runs

    def copied(self, name: str, runs: Sequence[Run]) -> list[Run]:
        """Runs of another table beside those that are there."""
        path, packed = self._packed(name)
        missing = {run.id: run for run in runs if run.id not in packed}
        if missing:
            self.pack(list((packed | missing).values()), path)
        return list(runs)

    def _packed(self, name: str) -> tuple[Path, dict[str, Run]]:
        with writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / name
        return path, {run.id: run for run in read_packed(path)} if path.exists() else {}


def reproduce(
    experiment: Experiment,
    out: Path,
    effort: Effort,
    together: int,
    say: Callable[[str], None],
    dispatcher: Dispatcher = InThisProcess(),
) -> SearchRecords:
    with _packing_meanwhile() as pack_meanwhile:
        stage = Maker(experiment.name, out, together, say, dispatcher, pack_meanwhile).stage
        return _stages(experiment, effort, stage)


def _stages(
    experiment: Experiment, effort: Effort, stage: Callable[[str, Sequence[Trial]], list[Run]]
) -> SearchRecords:
    searched = stage(SEARCH, search(experiment, effort.trials, search_seed=0, purpose=Purpose("search", effort)).trials)
    folds = _folds(SearchRecords(searched, [], []), effort) if effort.leave_out else []
    left_out = stage(LEFT_OUT, folds) if folds else []
    found = SearchRecords(searched, left_out, [])
    chosen = stage(CHOSEN, _fresh(found, effort))
    found = dataclasses.replace(found, chosen=chosen)
    if not effort.longer:
        return found
    longer = stage(LONGER, _longer(found, effort))
    return dataclasses.replace(found, chosen=chosen + longer)


@contextmanager
def _packing_meanwhile() -> Iterator[Callable[[list[Run], Path], None]]:
    """`pack` beside the training of the next stage, which does not wait for it."""
    packing: list[Future[None]] = []

    def submit(runs: list[Run], path: Path) -> None:
        if packing:
            packing[-1].result()  # raises what stood in its way
        packing.append(thread.submit(pack, runs, path))

    with ThreadPoolExecutor(1) as thread:
        yield submit
        if packing:
            packing[-1].result()


def reproduce_with(
    overrides: Sequence[str],
    place: Path,
    maker: Maker,
    seeds: Sequence[int] = (),
    only: Sequence[str] = (),
    rules: Sequence[str] = (),
) -> SearchRecords:
    """The table of `place` with other data or another model: the settings its rules chose, with fresh seeds.

    Nothing is searched anew: what the rules looked at is copied, so that they choose the same settings and rounds. The
    oracle looks at the new runs, of the settings that it or another rule chose.
    """
    found = read_published(place)
    check_named("only", only, found.methods(), place.name)
    check_named("rule", rules, found.rules(), place.name)
    wanted = wanted_settings(found, rules or found.rules(), 0)
    trials = _changed(found, overrides, seeds, {key: wanted[key] for key in wanted if not only or key[0] in only})
    searched, left_out = (
        maker.copied(name, [run for run in runs if not only or run.method in only])
        for name, runs in ((SEARCH, found.search), (LEFT_OUT, found.left_out))
    )
    return SearchRecords(searched, left_out, maker.stage(CHOSEN, trials))


def _changed(
    found: SearchRecords, overrides: Sequence[str], seeds: Sequence[int], wanted: dict[Setting, tuple[str, ...]]
) -> list[Trial]:
    effort = Effort(found.settings, 1, bool(found.left_out), tuple(seeds or sorted({run.seed for run in found.chosen})))
    trials = []
    for (method, setting), rules in wanted.items():
        before, purpose = found.runs_of(method, setting)[0].asked, Purpose("chosen", effort, rules)
        for seed in effort.seeds:
            trial = trial_of(before, seed=seed, overrides=overrides)
            _check_rounds(before, trial)
            trials.append(dataclasses.replace(trial, method=method, setting=setting, purpose=purpose))
    return trials


def _check_rounds(before: dict[str, Any], trial: Trial) -> None:
    for key in ("rounds", "evaluate_every"):
        own = before["training"][key]
        if getattr(trial.training, key) != own:
            raise UserError(f"training.{key}: must stay {own}, since the rounds that rules chose are taken over.")


def check_named(option: str, given: Sequence[str], known: Sequence[str], where: str) -> None:
    for name in given:
        if name not in known:
            named = ", ".join(f'"{one}"' for one in known)  # in which there may be commas
            raise UserError(f'--{option} "{name}": {where} has {named}.')


def _asked_for_again(run: Run, trial: Trial) -> Run:
    """The run, its record naming every rule that has asked for it: with more finalists, more rules may."""
    if run.purpose is None or trial.purpose is None:
        return run
    rules = tuple(dict.fromkeys([*run.purpose.rules, *trial.purpose.rules]))
    if rules == run.purpose.rules:
        return run
    return run.with_facts(dataclasses.replace(run.facts, purpose=dataclasses.replace(run.purpose, rules=rules)))


def _folds(found: SearchRecords, effort: Effort) -> list[Trial]:
    """The best settings of each method by `source`, once for each client left out."""
    purpose = Purpose("left out", effort, (LEAVE_ONE_CLIENT_OUT,))
    trials = []
    for run in finalists_of(found, "source", effort.finalists):
        for client in range(run.clients):
            trial = trial_of(run.asked, label=f"{run.label} without {client}", data={"leave_out": client})
            trials.append(dataclasses.replace(trial, method=run.method, setting=run.setting, purpose=purpose))
    return trials


def _fresh(found: SearchRecords, effort: Effort) -> list[Trial]:
    """Every setting that a rule takes, by its best or by its last round, and the finalists of rules that look at fresh
    seeds, with each of those."""
    searched = {(run.method, run.setting): run for run in found.search}
    trials = []
    for (method, setting), rules in wanted_settings(found, found.rules(), effort.finalists).items():
        purpose = Purpose("chosen", effort, rules)
        for seed in effort.seeds:
            trial = trial_of(searched[method, setting].asked, seed=seed)
            trials.append(dataclasses.replace(trial, method=method, setting=setting, purpose=purpose))
    return trials


def _longer(found: SearchRecords, effort: Effort) -> list[Trial]:
    """The oracle's best settings of each method again, with more rounds.

    With their rounds they are settings of their own, and are counted on from those of the search.
    """
    purpose = Purpose("longer", effort, (ORACLE,))
    counted = 1 + max(map(setting_of, found.search))
    trials = []
    for method in found.methods():
        runs = [run for run in found.chosen if run.method == method]
        best = sorted(views_of(ORACLE, runs), key=lambda seen: -seen.best)[: effort.longer_settings]
        for run in runs:
            if setting_of(run) in [seen.setting for seen in best]:
                number = counted + setting_of(run)
                trial = trial_of(run.asked, label=f"{method} #{number}", training={"rounds": effort.longer})
                trials.append(dataclasses.replace(trial, method=method, setting=number, purpose=purpose))
    return trials
