"""Trials that run as one program, usually one: train, evaluate, record, survive being killed."""

import json
import math
import shutil
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from perinvfl.core import checkpoint
from perinvfl.core.files import make_folder, only_one, remove, remove_temporary, write_atomically
from perinvfl.core.seeding import generator
from perinvfl.data.federation import Federation
from perinvfl.engine.devices import pick_device
from perinvfl.engine.environment import environment
from perinvfl.engine.program_run import ProgramRun
from perinvfl.engine.simulation import Simulation
from perinvfl.engine.timing import fastest, time_executors
from perinvfl.errors import UserError
from perinvfl.learning.groups import balanced_accuracy
from perinvfl.models import Model, build_model
from perinvfl.models.torch_module import shapes_checksum
from perinvfl.preparation.phases import Notes
from perinvfl.preparation.program import check_preparation
from perinvfl.runs import events
from perinvfl.runs.evaluated import about_evaluated, notes_about
from perinvfl.runs.event_log import Event, Writer
from perinvfl.runs.facts import run_id
from perinvfl.runs.finishing import finish_runs
from perinvfl.runs.found_words import Names, found_in_words
from perinvfl.runs.progress import Progress, Pruned
from perinvfl.runs.records import CHECKPOINT, TOGETHER, demand_results, records_about, tally_in
from perinvfl.runs.trial import Trial

# A checkpoint is written after a round unless writing would take more than about a twentieth of the time.
CHECKPOINT_SHARE = 20.0
EXECUTORS = ("auto", "vmap", "loop")  # as numbered in checkpoints
MEASURED = ("resnet18",)  # models for which "auto" times both executors; for the others the device decides

Measured = dict[str, dict[str, torch.Tensor]]  # by kind of model and test context, see `Simulation.evaluate`

_prepared: dict[tuple[object, ...], Notes] = {}  # by Trial.preparation_key: several methods may prepare alike
MOST_PREPARED = 16


def forget_prepared() -> None:
    """As in a new process."""
    _prepared.clear()


def checkpoint_of(trials: list[Trial], out: Path) -> Path:
    """Where trials that run as one program are saved; what else they keep on disk lies beside it."""
    if len(trials) == 1:
        return out / trials[0].folder / CHECKPOINT
    return out / TOGETHER / f"{run_id({'trials': [trial.id for trial in trials]})}.pt"


class TrialGroup:
    def __init__(self, trials: list[Trial], out: Path, progress: Progress, name: str, order: dict[str, int]) -> None:
        self.trials, self.progress, self.name, self.order = trials, progress, name, order
        self.writers = [Writer(out / trial.folder) for trial in trials]
        self.checkpoint = checkpoint_of(trials, out)
        if len(trials) == 1:
            self.at_rest = self.checkpoint.with_name("at_rest")
        else:
            self.at_rest = self.checkpoint.with_name(f"{self.checkpoint.stem}-at_rest")
            make_folder(self.checkpoint.parent)
            write_atomically(self.checkpoint.with_suffix(".json"), json.dumps([trial.id for trial in trials]).encode())
        self.broken: set[int] = set()  # trials that are no longer finite, as far as recorded
        self.began = 0.0  # when the run would have begun, had it never been interrupted
        self.written, self.cost = 0.0, 0.0  # when the last checkpoint was written, and how long that took
        self.executor = "auto"
        self.timed: dict[str, float] = {}  # seconds of a round by executor, where that was measured

    def run(self) -> None:
        lock = self.checkpoint.with_suffix(".lock")
        with only_one(lock, f"Another process is at work on {lock.parent}; let it finish, or stop it first."):
            remove_temporary(lock.parent, self.checkpoint.stem)
            try:
                self._run()
            except UserError:
                if not self.checkpoint.exists() and not any(writer.path.exists() for writer in self.writers):
                    lock.unlink()  # refused before it began: no folder that a pattern would match
                    with suppress(OSError):
                        lock.parent.rmdir()
                raise

    def _run(self) -> None:
        saved = checkpoint.load(self.checkpoint) if self.checkpoint.exists() else None
        run = self._open(saved)
        if saved is None:
            self._start()
        self.progress.started(self.trials, run.rounds_done)
        # The first checkpoint comes at once; many trials in one program are large, and theirs waits.
        self.written, self.cost = time.perf_counter(), 0.0 if len(self.trials) == 1 else 5.0
        try:
            self._prepare(run)
            self._train(run)
        except Pruned as told:
            self._prune(run.rounds_done, str(told))
            raise
        self._finish(run.simulation)

    # Before the first round ----------------------------------------------------------------------------------------

    def _open(self, saved: dict[str, torch.Tensor] | None) -> ProgramRun:
        """The program, at its beginning or where the checkpoint left it."""
        first = self.trials[0]
        by_data = {(trial.data, trial.seed): trial.federation() for trial in self.trials}
        each = [by_data[trial.data, trial.seed] for trial in self.trials]
        federations = {trial.seed: federation for trial, federation in zip(self.trials, each, strict=True)}
        alike = all(trial.data == first.data for trial in self.trials)  # no folds among them
        for federation in federations.values() if alike else each:
            federation.check_tests()
            check_preparation(first.contexts, federation, first.model)
        known = {trial.seed: _prepared[key] for trial in self.trials if (key := trial.preparation_key) in _prepared}
        run = ProgramRun(
            first.program(),
            [trial.algorithm for trial in self.trials],
            federations,
            [trial.seed for trial in self.trials],
            first.model,
            self.at_rest,
            known,
            None if alike else each,
        )
        if first.training.executor == "auto" and first.model.kind in MEASURED:
            if saved is None:
                shown = run.all_given() if run.program.preparation else run.all_seen()
                self.timed = time_executors(run.algorithms, shown, run.seeds, first.training, first.model)
            run = run.with_executor(fastest(self.timed) if saved is None else self._executor_in(saved))
        self.executor = run.training.executor
        self.began = time.perf_counter()
        if saved is not None:
            self._restore(run, saved)
        else:
            run.check()  # before anything is written
        return run

    def _executor_in(self, saved: dict[str, torch.Tensor]) -> str:
        try:
            return EXECUTORS[int(saved["executor"])]
        except checkpoint.NOT_FITTING as error:
            raise checkpoint.unfit(self.checkpoint, error) from error

    def _start(self) -> None:
        for trial, writer in zip(self.trials, self.writers, strict=True):
            measured = {"used": self.executor, "seconds": _finite(self.timed)}
            federation = trial.federation()
            model = build_model(trial.model, federation.shape, federation.outputs, trial.training.precision)
            further: dict[str, Any] = {"executor": measured} if self.timed else {}
            writer.begin(**start_of(trial, federation, model, self.name, self.order[trial.id], **further))

    def _restore(self, run: ProgramRun, saved: dict[str, torch.Tensor]) -> None:
        try:
            run.restore(saved)
            self.began -= float(saved["seconds"])
        except checkpoint.NOT_FITTING as error:
            raise checkpoint.unfit(self.checkpoint, error) from error
        preparing = run.preparation is not None
        if not preparing:
            self.broken = {t for t, round in enumerate(run.simulation.broken.tolist()) if round >= 0}
        due = [round for round in range(1, run.rounds_done + 1) if run.training.evaluates_after(round)]
        for t, writer in enumerate(self.writers):
            demand = partial(demand_results, writer.path, due, t in self.broken)
            counted = tally_in(self.checkpoint, writer.path.parent)
            writer.rewind(counted, None if preparing else run.rounds_done, demand)

    def _prepare(self, run: ProgramRun) -> None:
        """The phases in front, with checkpoints on the way."""
        if run.rounds_done or not run.program.preparation:
            return
        while (preparation := run.preparation) is not None:
            phase = preparation.phase
            round = preparation.rounds_done + 1
            run.prepare_round()
            self.progress.preparing(self.trials, phase.name, round, phase.rounds)
            self._save_if_due(run)
        while len(_prepared) > MOST_PREPARED:
            _prepared.pop(next(iter(_prepared)))
        for trial, writer in zip(self.trials, self.writers, strict=True):
            _prepared[trial.preparation_key] = run.notes[trial.seed]
            writer.write(**events.prepared_event(run.facts(trial.seed), time.perf_counter() - self.began))
            words = found_in_words(run.facts(trial.seed), Names.of(run.federations[trial.seed].schema.names))
            if words:
                self.progress.remark([trial], words)

    # Rounds --------------------------------------------------------------------------------------------------------

    def _train(self, run: ProgramRun) -> None:
        simulation, training = run.simulation, run.training
        on_cpu = simulation.device.type == "cpu"
        spent: list[float] = []  # seconds in the first rounds
        while simulation.rounds_done < training.rounds and len(self.broken) < len(self.trials):
            began = time.perf_counter()
            risks = run.round()
            done = simulation.rounds_done
            if simulation.problem.compiled and len(spent) < 2:
                spent.append(time.perf_counter() - began)
                self._tell_of_compiling(spent)
            due = training.evaluates_after(done)
            # Asked of a GPU while it is still at the rounds; what comes next waits for it.
            measured = simulation.evaluate() if due else {}
            if on_cpu or due:
                self._look_for_broken(simulation)
            self.progress.round(self.trials, done, float(risks.mean()) if on_cpu or due else None)
            if due:
                self._record(simulation, risks, measured)
            self._save_if_due(run, last=done == training.rounds and len(self.trials) == 1)

    def _tell_of_compiling(self, spent: list[float]) -> None:
        if len(spent) == 2:
            cost = max(spent[0] - spent[1], 0.0)
            self.progress.remark(self.trials, f"Compiling the steps took {cost:.1f} s; later runs reuse most of it.")

    def _save_if_due(self, run: ProgramRun, last: bool = False) -> None:
        before = time.perf_counter()
        full = run.rounds_done > 0 and run.simulation.store.full
        if before - self.written < CHECKPOINT_SHARE * self.cost and not last and not full:
            return
        spent = torch.tensor(before - self.began, dtype=torch.float64)
        executor = torch.tensor(EXECUTORS.index(self.executor))
        state = run.state() | {"seconds": spent, "executor": executor}
        checkpoint.save(self.checkpoint, state, records_about(self.writers))
        if run.rounds_done:
            run.simulation.store.settle()
        self.written = time.perf_counter()
        self.cost = self.written - before

    def _record(self, simulation: Simulation, risks: torch.Tensor, measured: Measured) -> None:
        """An evaluation of every trial that is still sound."""
        kind = "personal" if "personal" in measured else "global"
        seconds = time.perf_counter() - self.began
        for t, writer in enumerate(self.writers):
            if t not in self.broken:
                scores = {k: {case: row[t].tolist() for case, row in cases.items()} for k, cases in measured.items()}
                chosen = simulation.tested_clients[t] if simulation.samples_clients else None
                notes = notes_about(self.trials[t].federation().notes, chosen)
                balanced = balanced_of(notes, scores.get(f"{kind} groups", {}))
                event = events.evaluation_event(simulation.rounds_done, seconds, risks[t].tolist(), scores, **balanced)
                writer.write(**event)
                self.progress.measured(self.trials[t], event)
        sound = [t for t in range(len(self.trials)) if t not in self.broken]
        cases = [measured[kind][name][sound].nanmean() for name in simulation.federation.spectrum]
        mean = float(torch.stack(cases).mean()) if sound else None
        self.progress.evaluated(self.trials, simulation.rounds_done, mean, simulation.federation.task)

    def _look_for_broken(self, simulation: Simulation) -> None:
        for t, round in enumerate(simulation.broken.tolist()):
            if round >= 0 and t not in self.broken:
                self.broken.add(t)
                why = broken_sentence(self.trials[t], round)
                self.writers[t].write(**events.broken_event(round, why))
                self.progress.broke(self.trials[t], round, why)

    def _finish(self, simulation: Simulation) -> None:
        seconds = time.perf_counter() - self.began
        fits = finish_runs(self.trials, self.writers, self.broken, simulation, seconds)
        for trial, fit in zip(self.trials, fits, strict=True):
            if fit is not None and not fit.better:
                self.progress.remark([trial], fit.in_words())
        if len(self.trials) > 1:
            self._forget()
        self.progress.finished(self.trials, seconds)

    def _prune(self, round: int, why: str) -> None:
        """What was measured stays on record; the models do not."""
        for t, writer in enumerate(self.writers):
            if t not in self.broken:
                writer.write(**events.pruned_event(round, why))
            writer.sync()
        self._forget()
        self.progress.finished(self.trials, time.perf_counter() - self.began, why)

    def _forget(self) -> None:
        remove(self.checkpoint)
        remove(self.checkpoint.with_suffix(".json"))
        shutil.rmtree(self.at_rest, ignore_errors=True)


def start_of(trial: Trial, federation: Federation, model: Model, experiment: str, order: int, **further: Any) -> Event:
    """The first event of a run on this machine."""
    return events.start_event(
        trial,
        asked=trial.asked(),
        id=trial.id,
        experiment=experiment,
        order=order,
        spectrum=federation.spectrum,
        task=federation.task,
        environment=environment(pick_device(trial.training.device)),
        **about_evaluated(federation, trial.training),
        parameters=shapes_checksum(model.init(generator(trial.seed, "weights"))),
        **further,
    )


def balanced_of(notes: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """Class-balanced accuracy of each test context with groups: a selection rule looks at nothing but events."""
    if not right:
        return {}
    there = notes["groups"]["counts"]
    return {"balanced": {case: round(balanced_accuracy(hits, there[case]), 6) for case, hits in right.items()}}


def broken_sentence(trial: Trial, round: int) -> str:
    settings = trial.asked()["algorithm"]
    asked = ", ".join(f"{key} = {value}" for key, value in settings.items() if key not in ("name", "label"))
    return f"{trial.title}, seed {trial.seed}: no longer finite after round {round}, stopped ({asked})"


def _finite(seconds: dict[str, float]) -> dict[str, float | None]:
    """A time without end is none in JSON."""
    return {kind: round(value, 6) if math.isfinite(value) else None for kind, value in seconds.items()}
