"""Carry out an experiment: train, evaluate, record, survive being killed. `python -m perinvfl.train FILE.toml`.

Needs torch and the standard library only, so it runs on a machine where nothing can be installed.
"""

import argparse
import dataclasses
import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from perinvfl.core import checkpoint, tree
from perinvfl.core.commands import guarded
from perinvfl.core.files import only_one, write_atomically, writing
from perinvfl.data.federation import Federation
from perinvfl.engine.environment import environment
from perinvfl.engine.simulation import Simulation, fastest, time_executors
from perinvfl.errors import UserError
from perinvfl.learning.groups import balanced_accuracy
from perinvfl.models.torch_module import shapes_checksum
from perinvfl.runs.experiment import Experiment, read_experiment
from perinvfl.runs.records import CHECKPOINT, Run, Writer, pack, read_run, run_id
from perinvfl.runs.search import batch_trials, search
from perinvfl.runs.trial import Trial

TOGETHER = ".together"  # checkpoints of trials that run as one program
# A checkpoint is written after a round unless writing would take more than about a twentieth of the time.
CHECKPOINT_SHARE = 20.0
EXECUTORS = ("auto", "vmap", "loop")  # as numbered in checkpoints
MEASURED = ("resnet18",)  # models for which "auto" times both executors; for the others the device decides


class Watch:
    """What is told about work under way; the base tells nothing."""

    def skipped(self, trial: Trial, run: Run) -> None: ...
    def started(self, trials: list[Trial], rounds_done: int) -> None: ...
    def round(self, trials: list[Trial], rounds_done: int, risk: float | None) -> None: ...
    def evaluated(self, trials: list[Trial], rounds_done: int, mean: float | None) -> None: ...
    def broke(self, trial: Trial, round: int) -> None: ...
    def finished(self, trials: list[Trial], seconds: float) -> None: ...


class Plain(Watch):
    """One line an event, for logs."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.say = say
        self.began, self.before, self.risk = 0.0, 0, ""

    def skipped(self, trial: Trial, run: Run) -> None:
        self.say(f"{trial.title}, seed {trial.seed}: already done, nothing to do ({run.folder})")

    def started(self, trials: list[Trial], rounds_done: int) -> None:
        goes_on = f", going on after round {rounds_done}" if rounds_done else ""
        self.began, self.before, self.risk = time.perf_counter(), rounds_done, ""
        self.say(f"{_names(trials)}: {trials[0].training.rounds} rounds{goes_on}")

    def round(self, trials: list[Trial], rounds_done: int, risk: float | None) -> None:
        self.risk = "" if risk is None else f", risk {risk:.4f}"

    def evaluated(self, trials: list[Trial], rounds_done: int, mean: float | None) -> None:
        told = "" if mean is None else f", mean over the spectrum {mean:.4f}"
        rounds = trials[0].training.rounds
        pace = (time.perf_counter() - self.began) / max(1, rounds_done - self.before)
        left = f", about {pace * (rounds - rounds_done):.0f} s left" if rounds_done < rounds else ""
        self.say(f"{_names(trials)}: round {rounds_done} of {rounds}{self.risk}{told}{left}")

    def broke(self, trial: Trial, round: int) -> None:
        self.say(broken_sentence(trial, round))

    def finished(self, trials: list[Trial], seconds: float) -> None:
        self.say(f"{_names(trials)}: done in {seconds:.1f} s")


def train(experiment: Experiment, out: Path, watch: Watch, most_together: int = 1) -> list[Path]:
    """Run every trial that is not finished yet; the folders of all of them, in order."""
    waiting: list[Trial] = []
    for trial in experiment.trials:
        run = read_run(out / trial.folder)
        if run is not None and run.finished:
            watch.skipped(trial, run)
        else:
            waiting.append(trial)
    order = {trial.id: number for number, trial in enumerate(experiment.trials)}
    begun = _begun_together(experiment, waiting, out)
    taken = {trial.id for group in begun for trial in group}
    rest = tuple(trial for trial in waiting if trial.id not in taken)
    for group in [*begun, *batch_trials(rest, most_together)]:
        _Group(group, out, watch, experiment.name, order).run()
    return [out / trial.folder for trial in experiment.trials]


def _begun_together(experiment: Experiment, waiting: list[Trial], out: Path) -> list[list[Trial]]:
    """Groups of trials with a checkpoint, whole: a trial that broke meanwhile is still part of its program."""
    known = {trial.id: trial for trial in experiment.trials}
    left = {trial.id for trial in waiting}
    groups = []
    for members in sorted((out / TOGETHER).glob("*.json")):
        ids = json.loads(members.read_text())
        if left & set(ids) and set(ids) <= set(known) and members.with_suffix(".pt").exists():
            groups.append([known[id] for id in ids])
            left -= set(ids)
    return groups


class _Group:
    """Trials run as one program; usually one."""

    def __init__(self, trials: list[Trial], out: Path, watch: Watch, name: str, order: dict[str, int]) -> None:
        self.trials, self.watch, self.name, self.order = trials, watch, name, order
        self.writers = [Writer(out / trial.folder) for trial in trials]
        if len(trials) == 1:
            folder = out / trials[0].folder
            self.checkpoint, self.at_rest = folder / CHECKPOINT, folder / "at_rest"
        else:
            folder = out / TOGETHER
            ids = [trial.id for trial in trials]
            stem = run_id({"trials": ids})
            self.checkpoint, self.at_rest = folder / f"{stem}.pt", folder / f"{stem}-at_rest"
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.checkpoint.with_suffix(".json"), json.dumps(ids).encode())
        self.told_broken: set[int] = set()
        self.seconds_before = 0.0  # spent on this run before it was killed
        self.executor = "auto"
        self.timed: dict[str, float] = {}  # seconds of a round by executor, where that was measured

    def run(self) -> None:
        lock = self.checkpoint.with_suffix(".lock")
        with only_one(lock, f"Another process is at work on {lock.parent}; let it finish, or stop it first."):
            try:
                self._run()
            except UserError:
                if not self.checkpoint.exists() and not any(writer.path.exists() for writer in self.writers):
                    lock.unlink()  # refused before it began: no folder that a pattern would match
                    with suppress(OSError):
                        lock.parent.rmdir()
                raise

    def _run(self) -> None:
        first = self.trials[0]
        saved = checkpoint.load(self.checkpoint) if self.checkpoint.exists() else None
        seeds = [trial.seed for trial in self.trials]
        one_draw = len(set(seeds)) == 1
        algorithms = [trial.algorithm for trial in self.trials]
        federations = [first.federation()] if one_draw else [trial.federation() for trial in self.trials]
        for federation in federations:
            federation.check_tests()
        training = first.training
        if training.executor == "auto" and first.model.kind in MEASURED:
            if saved is None:
                self.timed = time_executors(algorithms, federations, seeds, training, first.model)
            chosen: Any = fastest(self.timed) if saved is None else EXECUTORS[int(saved["executor"])]
            training = dataclasses.replace(training, executor=chosen)
        self.executor = training.executor
        simulation = Simulation(algorithms, federations, seeds, training, first.model, folder=self.at_rest)
        if saved is not None:
            self._restore(simulation, saved)
        else:
            self._start(simulation)
        self.watch.started(self.trials, simulation.rounds_done)
        began = time.perf_counter() - self.seconds_before
        self._train(simulation, first.training.rounds, first.training.evaluate_every, began)
        self._finish(simulation, time.perf_counter() - began)

    def _train(self, simulation: Simulation, rounds: int, evaluate_every: int, began: float) -> None:
        on_cpu = simulation.device.type == "cpu"
        # The first checkpoint comes at once; many trials in one program are large, and theirs waits.
        written, cost = time.perf_counter(), 0.0 if len(self.trials) == 1 else 5.0
        while simulation.rounds_done < rounds and len(self.told_broken) < len(self.trials):
            risks = simulation.round()
            done = simulation.rounds_done
            due = done % evaluate_every == 0 or done == rounds
            if on_cpu or due:
                self._look_for_broken(simulation)
            self.watch.round(self.trials, done, float(risks.mean()) if on_cpu or due else None)
            if due:
                self._evaluate(simulation, risks, time.perf_counter() - began)
            if time.perf_counter() - written >= CHECKPOINT_SHARE * cost or (done == rounds and len(self.trials) == 1):
                before = time.perf_counter()
                spent = torch.tensor(before - began, dtype=torch.float64)
                executor = torch.tensor(EXECUTORS.index(self.executor))
                checkpoint.save(self.checkpoint, simulation.state() | {"seconds": spent, "executor": executor})
                simulation.store.settle()
                written = time.perf_counter()
                cost = written - before

    def _start(self, simulation: Simulation) -> None:
        for trial, writer in zip(self.trials, self.writers, strict=True):
            writer.path.unlink(missing_ok=True)  # what a run killed before its first checkpoint left
            writer.write(
                "start",
                **start_fields(trial, trial.federation(), simulation, self.name, self.order[trial.id]),
                **({"executor": {"used": self.executor, "seconds": _finite(self.timed)}} if self.timed else {}),
            )

    def _restore(self, simulation: Simulation, saved: dict[str, torch.Tensor]) -> None:
        try:
            simulation.restore(saved)
        except (KeyError, RuntimeError, ValueError) as error:
            raise UserError(
                f"The checkpoint {self.checkpoint} does not fit this run ({type(error).__name__}); "
                "delete it to start the run again."
            ) from error
        self.seconds_before = float(saved["seconds"])
        for writer in self.writers:
            writer.rewind(simulation.rounds_done)
        self.told_broken = {t for t, round in enumerate(simulation.broken.tolist()) if round >= 0}

    def _evaluate(self, simulation: Simulation, risks: torch.Tensor, seconds: float) -> None:
        measured = simulation.evaluate()
        self._look_for_broken(simulation)
        kind = "personal" if "personal" in measured else "global"
        lead = measured[kind]
        for t, writer in enumerate(self.writers):
            if t not in self.told_broken:
                writer.write(
                    "evaluation",
                    round=simulation.rounds_done,
                    seconds=round(seconds, 3),
                    risks=_rounded(risks[t]),
                    **{
                        kind: {name: _rounded(row[t]) for name, row in cases.items()}
                        for kind, cases in measured.items()
                    },
                    **self._balanced(t, measured.get(f"{kind} groups", {})),
                )
        sound = [t for t in range(len(self.trials)) if t not in self.told_broken]
        cases = [lead[name][sound].nanmean() for name in simulation.federation.spectrum]
        self.watch.evaluated(self.trials, simulation.rounds_done, float(torch.stack(cases).mean()) if sound else None)

    def _balanced(self, t: int, right: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Class-balanced accuracy of each test context with groups: a selection rule looks at nothing but events."""
        if not right:
            return {}
        there: Any = self.trials[t].federation().notes["groups"]
        scores = {case: balanced_accuracy(hits[t].tolist(), there["counts"][case]) for case, hits in right.items()}
        return {"balanced": {case: round(score, 6) for case, score in scores.items()}}

    def _look_for_broken(self, simulation: Simulation) -> None:
        for t, round in enumerate(simulation.broken.tolist()):
            if round >= 0 and t not in self.told_broken:
                self.told_broken.add(t)
                self.writers[t].write("broken", round=round, why=broken_sentence(self.trials[t], round))
                self.watch.broke(self.trials[t], round)

    def _finish(self, simulation: Simulation, seconds: float) -> None:
        peak = torch.cuda.max_memory_allocated() if simulation.device.type == "cuda" else 0
        for t, writer in enumerate(self.writers):
            if t not in self.told_broken:
                writer.write("end", round=simulation.rounds_done, seconds=round(seconds, 3), gpu_bytes=peak)
        if len(self.trials) > 1:
            self.checkpoint.unlink(missing_ok=True)
            self.checkpoint.with_suffix(".json").unlink(missing_ok=True)
            shutil.rmtree(self.at_rest, ignore_errors=True)
        self.watch.finished(self.trials, seconds)


def start_fields(
    trial: Trial, federation: Federation, simulation: Simulation, experiment: str, order: int
) -> dict[str, Any]:
    """What the first line of a record tells."""
    return {
        "id": trial.id,
        "experiment": experiment,
        "order": order,
        "asked": trial.asked(),
        "spectrum": list(federation.spectrum),
        "task": federation.task,
        "clients": simulation.clients,
        "notes": federation.notes,
        "schema": federation.schema.names,
        "parameters": shapes_checksum(tree.map(lambda leaf: leaf[0], simulation.server.params)),
        "environment": environment(simulation.device),
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def broken_sentence(trial: Trial, round: int) -> str:
    settings = trial.asked()["algorithm"]
    told = ", ".join(f"{key} = {value}" for key, value in settings.items() if key not in ("name", "label"))
    return f"{trial.title}, seed {trial.seed}: no longer finite after round {round}, stopped ({told})"


def _names(trials: list[Trial]) -> str:
    first = f"{trials[0].title}, seed {trials[0].seed}"
    return first if len(trials) == 1 else f"{first} and {len(trials) - 1} more"


def _finite(seconds: dict[str, float]) -> dict[str, float | None]:
    """A time without end is none in JSON."""
    return {kind: round(value, 6) if math.isfinite(value) else None for kind, value in seconds.items()}


def _rounded(row: torch.Tensor) -> list[Any]:
    if row.ndim > 1:
        return [_rounded(part) for part in row]
    return [round(value, 6) if math.isfinite(value) else None for value in row.tolist()]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perinvfl.train", description=__doc__)
    parser.add_argument("file", type=Path, help="experiment file")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the records")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace one setting")
    parser.add_argument("--trials", type=int, default=0, help="random search with this many settings an algorithm")
    parser.add_argument("--search-seed", type=int, default=0, help="seed of the random search")
    parser.add_argument("--together", type=int, default=64, help="most trials in one program of a search")
    parser.add_argument("--pack", type=Path, help="also write the records of all runs into this one file (.jsonl.xz)")
    given = parser.parse_args(arguments)
    again = sys.argv[1:] if arguments is None else arguments
    return guarded(lambda: _main(given), shlex.join([sys.executable, "-m", "perinvfl.runs.train", *again]))


def _main(given: Any) -> int:
    experiment = read_experiment(given.file, given.set)
    if given.trials:
        experiment = search(experiment, given.trials, given.search_seed)
        experiment = dataclasses.replace(experiment, name=f"{experiment.name}-sweep")
    folders = train(experiment, given.out / experiment.name, Plain(), most_together=given.together)
    if given.pack is not None:
        pack([run for run in map(read_run, folders) if run is not None], given.pack)
    return 0


if __name__ == "__main__":
    sys.exit(main())
