"""Batches of trials as tasks of a Ray cluster: records of one machine, gathered as they finish."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from perinvfl.cluster.board import Message
from perinvfl.cluster.calls import Calls, Waiting
from perinvfl.cluster.connection import LOCAL, address_of, connected
from perinvfl.cluster.node import Answer, Call, do_job, train_batch, versions
from perinvfl.cluster.parcels import Files, begun_files, clear, install, own_code
from perinvfl.cluster.relay import Told
from perinvfl.core.files import make_folder, only_one
from perinvfl.errors import Hindered, UserError
from perinvfl.runs.batches import Batch, Dispatcher, InThisProcess, Job, Result
from perinvfl.runs.progress import Progress, Pruned
from perinvfl.runs.records import ARRIVING
from perinvfl.runs.trial import Trial

LOCK = ".cluster.lock"
OWN_DATA = "file"  # the benchmark whose data travel: a node need not have the file


@contextmanager
def dispatcher_on(on: str, cores: int, processes: int = 1) -> Iterator[Dispatcher]:
    """What `--on` names: a Ray cluster, or nothing for this process. cores: of each task on a CPU."""
    if not on:
        yield InThisProcess(processes)
        return
    with connected(on) as ray:
        yield OnRay(ray, cores, local=address_of(on) == LOCAL)


class OnRay:
    def __init__(self, ray: Any, cores: int = 1, local: bool = False) -> None:
        self.ray, self.cores = ray, cores
        self.federations: dict[tuple[Any, int], Any] = {}  # Ray's names of own data, by settings and seed
        there = int(ray.cluster_resources().get("CPU", 0))
        if local and cores > there:
            raise UserError(f"--cores {cores}: this machine has {there}.")

    @property
    def slots(self) -> int:
        there = self.ray.cluster_resources()
        return max(1, int(there.get("GPU", 0)) or int(there.get("CPU", 0)) // self.cores)

    def uses_gpu(self, device: str) -> bool:
        return device == "cuda" or (device == "auto" and self.ray.cluster_resources().get("GPU", 0) >= 1)

    def finished(
        self, batches: Iterable[Batch], out: Path, progress: Progress, at_once: int = 0
    ) -> Iterator[tuple[Batch, bool]]:
        make_folder(out)
        with only_one(out / LOCK, f"Another process is at work on {out}; let it finish, or stop it first."):
            clear(out / ARRIVING)  # what a killed process left
            yield from self._finished(batches, out, progress, at_once)

    def _finished(
        self, batches: Iterable[Batch], out: Path, progress: Progress, at_once: int
    ) -> Iterator[tuple[Batch, bool]]:
        told: dict[str, Told] = {}  # by the first trial of a batch

        def heard(batch: Batch, message: Message) -> None:
            try:
                told[batch.trials[0].folder].replay(message)
            except Pruned as why:
                calls.give_up(batch, str(why))

        def lost(batch: Batch, words: str) -> None:
            progress.remark(batch.trials, words)

        calls = Calls(self.ray, heard, lost, progress.tasks)
        hindered = ""

        def sent(batch: Batch) -> Waiting:
            told[batch.trials[0].folder] = Told(batch.trials, progress)
            return self.waiting(batch, out)

        with closing(calls.answers(map(sent, batches), at_once)) as answers:
            for batch, answer in answers:
                if answer.refused and not answer.hindered:
                    raise UserError(answer.refused)
                if answer.refused:  # what other nodes have begun is waited for
                    hindered = hindered or _on_node(answer)
                    calls.stop()
                    continue
                files, ended, (seconds, summary) = answer.value
                install(files, batch.trials, out)
                told.pop(batch.trials[0].folder).catch_up(out)
                progress.finished(batch.trials, seconds, summary)
                if not hindered:
                    yield batch, ended
        if hindered:
            raise Hindered(hindered)

    def waiting(self, batch: Batch, out: Path) -> Waiting:
        """The batch as a task: what it is sent with, and what it takes."""
        begun: Files = begun_files(batch.trials, out)
        own = {
            (trial.data, trial.seed): place for place, trial in enumerate(batch.trials) if trial.benchmark == OWN_DATA
        }
        extra = [self._data(batch.trials[place]) for place in own.values()]
        arguments = pickle.dumps((batch, begun, list(own.values())))
        call = Call(train_batch, arguments, own_code(batch.trials), self.cores, versions())
        return Waiting(batch, call, extra, gpus=int(self.uses_gpu(batch.trials[0].training.device)))

    def _data(self, trial: Trial) -> Any:
        key = trial.data, trial.seed
        if key not in self.federations:
            self.federations[key] = self.ray.put(trial.federation())
        return self.federations[key]

    def results(
        self, work: Callable[[Job, Path], Result], jobs: list[Job], out: Path
    ) -> Iterator[tuple[Job, Callable[[], Result]]]:
        def ignored(*told: Any) -> None: ...

        gpus = int(self.uses_gpu("auto"))
        sent = [
            Waiting(job, Call(do_job, pickle.dumps((work, job)), {}, self.cores, versions()), [], gpus) for job in jobs
        ]
        with closing(Calls(self.ray, ignored, ignored, ignored).answers(sent, at_once=0)) as answers:
            for job, answer in answers:
                yield job, lambda answer=answer: _value(answer)  # type: ignore[misc]


def _value(answer: Answer) -> Any:
    if answer.refused:
        raise Hindered(_on_node(answer)) if answer.hindered else UserError(answer.refused)
    return answer.value


def _on_node(answer: Answer) -> str:
    return f"On the node {answer.node}: {answer.refused}"
