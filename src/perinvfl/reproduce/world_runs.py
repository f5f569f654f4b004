"""Carry out the runs of methods in worlds, by several processes, and keep their records in two packed files.

Ordinary runs: one that is in a packed file, or finished in its folder, is not made again, and one that was stopped
resumes. A method that cannot run in a world is no failure: the reason is kept for the table.
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perinvfl.core.files import write_atomically, writing
from perinvfl.errors import Hindered, UserError
from perinvfl.reproduce.worlds import Method, Plan, World
from perinvfl.results.worlds import ABOUT, CHOOSING, REPORTED, WorldRecords, read_worlds
from perinvfl.runs.batches import Dispatcher
from perinvfl.runs.experiment import Experiment
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import CHECKPOINT, Run, pack, read_run
from perinvfl.runs.train import train

PACK_EVERY = 60.0  # seconds; what is not packed yet is in folders, and found there after a kill
FOLDERS = "runs"  # below the output folder; may be deleted once everything is packed


@dataclass(frozen=True)
class Job:
    """The runs of one method in one world, made by one process."""

    world: World
    method: Method
    settings: tuple[int, ...]
    seeds: tuple[int, ...]
    together: int  # most runs in one program
    packed: frozenset[str]  # ids of runs that are packed already

    @property
    def name(self) -> str:
        return f"{self.world.name}, {self.method.label}"

    def folder(self, out: Path) -> Path:
        """Of its own: processes that are at work at the same time must not look into each other's."""
        return out / FOLDERS / self.world.name / re.sub(r"[^a-z0-9]+", "-", self.method.label.lower()).strip("-")

    def makes(self, run: Run) -> bool:
        """Whether a run is of this method in this world."""
        return (run.experiment, run.method) == (self.world.name, self.method.label)


@dataclass(frozen=True)
class Outcome:
    wanted: frozenset[str]  # ids of all runs of the job
    made: tuple[Run, ...]  # those that were not packed yet
    refused: str  # why the method cannot run in the world; empty: it can


def carry_out(job: Job, out: Path) -> Outcome:
    try:
        wanted = job.method.trials(job.world, job.settings, job.seeds)
        missing = tuple(trial for trial in wanted if trial.id not in job.packed)
        folders = train(Experiment(job.world.name, missing), job.folder(out), Progress(), job.together)
    except Hindered:
        raise
    except UserError as refused:
        return Outcome(frozenset(), (), _of_any_setting(str(refused), job.method.label))
    for folder in folders:
        (folder / CHECKPOINT).unlink(missing_ok=True)  # a finished run of a table is not opened again
    made = tuple(run for run in map(read_run, folders) if run is not None)
    return Outcome(frozenset(trial.id for trial in wanted), made, "")


def _of_any_setting(why: str, method: str) -> str:
    """The sentence without the number of the setting that happened to be refused first."""
    return re.sub(rf"{re.escape(method)} #\d+", method, why)


class WorldRuns:
    """The records in an output folder, and what is added to them."""

    def __init__(
        self, plan: Plan, out: Path, dispatcher: Dispatcher, together: int, say: Callable[[str], None]
    ) -> None:
        self.plan, self.out, self.dispatcher, self.together, self.say = plan, out, dispatcher, together, say
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        there = read_worlds(out)
        self.refused = there.refused
        self.runs = {
            CHOOSING: {run.id: run for run in there.choosing},
            REPORTED: {run.id: run for run in there.reported},
        }

    def records(self) -> WorldRecords:
        labels = [method.label for method in self.plan.methods]
        choosing, reported = (list(self.runs[stage].values()) for stage in (CHOOSING, REPORTED))
        return WorldRecords(choosing, reported, labels, self.refused)

    def choose(self, part: Plan) -> None:
        """Every setting of every method in the chosen worlds. part: what is wanted of the whole plan this time."""
        jobs = [
            self._job(CHOOSING, world, method, tuple(range(len(method.entries))), (self.plan.seed,))
            for world in part.half("chosen")
            for method in part.methods
        ]
        self._run(CHOOSING, jobs)

    def report(self, part: Plan) -> None:
        """The chosen setting of each method in the reported worlds, once all its settings have been tried."""
        found, jobs = self.records(), []
        for method in part.methods:
            waits_for = self.untried(method)
            if waits_for:
                among = f"{len(waits_for)} chosen worlds, {waits_for[0]} among them"
                self.say(f"{method.label} is not reported yet: not all of its settings were run in {among}")
                continue
            setting = found.setting(method.label) or 0  # the first where no chosen world can run it
            self.say(f"{method.label}: setting #{setting} of {len(method.entries)}")
            jobs += [self._job(REPORTED, world, method, (setting,), self.plan.seeds) for world in part.half("reported")]
        self._run(REPORTED, jobs)

    def untried(self, method: Method) -> list[str]:
        """The chosen worlds in which a choice among the settings of a method still needs runs."""
        if len(method.entries) == 1:
            return []
        there = self.runs[CHOOSING]
        missing = []
        for world in self.plan.half("chosen"):
            try:
                wanted = method.trials(world, range(len(method.entries)), (self.plan.seed,))
            except UserError:
                continue  # it cannot run at all
            if world.name not in self.refused.get(method.label, {}) and any(trial.id not in there for trial in wanted):
                missing.append(world.name)
        return missing

    def _job(self, stage: str, world: World, method: Method, settings: tuple[int, ...], seeds: tuple[int, ...]) -> Job:
        return Job(world, method, settings, seeds, self.together, frozenset(self.runs[stage]))

    def _run(self, stage: str, jobs: Sequence[Job]) -> None:
        """Largest worlds first, so that no process is left with one at the end."""
        saved, failed = time.monotonic(), []
        results = self.dispatcher.results(carry_out, sorted(jobs, key=lambda job: -job.world.effort), self.out)
        for number, (job, result) in enumerate(results, 1):
            try:
                outcome = result()
            except Hindered:
                self.save(stage)
                raise
            except Exception as error:  # one job's mistake must not cost the others their work
                failed.append(f"{job.name}: {type(error).__name__}: {error}")
                self.say(f"{number} of {len(jobs)}: failed, {failed[-1]}")
                continue
            self._keep(stage, job, outcome)
            came = outcome.refused or f"{len(outcome.made)} runs made, {len(outcome.wanted) - len(outcome.made)} there"
            self.say(f"{number} of {len(jobs)}: {job.name}: {came}")
            if time.monotonic() - saved > PACK_EVERY:
                self.save(stage)
                saved = time.monotonic()
        self.save(stage)
        if failed:
            raise UserError(f"{len(failed)} of {len(jobs)} jobs failed, the first of them {failed[0]}")

    def _keep(self, stage: str, job: Job, outcome: Outcome) -> None:
        """Runs of settings that are no longer asked for are dropped: they would be chosen among, or averaged over."""
        why = self.refused.setdefault(job.method.label, {})
        why.pop(job.world.name, None)
        same = {id for id, run in self.runs[stage].items() if job.makes(run)}
        if outcome.refused:
            # Runs from a machine that could make them are kept.
            why |= {} if same else {job.world.name: outcome.refused}
            return
        for id in same - outcome.wanted:
            del self.runs[stage][id]
        self.runs[stage] |= {run.id: run for run in outcome.made}

    def save(self, stage: str) -> None:
        labels = [method.label for method in self.plan.methods]
        refused = {label: dict(sorted(self.refused.get(label, {}).items())) for label in labels}
        about = {"methods": labels, "refused": {label: why for label, why in refused.items() if why}}
        write_atomically(self.out / ABOUT, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
        if self.runs[stage]:
            by_name = sorted(
                self.runs[stage].values(), key=lambda run: (run.experiment, run.method, run.setting, run.seed)
            )
            pack(by_name, self.out / stage)
