"""Batches of trials that share a program, and who carries them out: this process, or workers on other machines.

A search hands its batches to a `Dispatcher` and does not know which one it is. Records are the same whoever made them.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from perinvfl.core.stopping import end_with_parent
from perinvfl.engine.devices import pick_device
from perinvfl.runs.group import TrialGroup
from perinvfl.runs.progress import Progress, Pruned
from perinvfl.runs.trial import Trial

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Batch:
    """Trials that run as one program, and what their records say of the experiment."""

    trials: list[Trial]
    experiment: str
    order: dict[str, int]  # by id: the place of a trial in the experiment

    def train(self, out: Path, progress: Progress) -> bool:
        """Whether it came to its end."""
        try:
            TrialGroup(self.trials, out, progress, self.experiment, self.order).run()
        except Pruned:
            return False
        return True


class Dispatcher(Protocol):
    @property
    def slots(self) -> int:
        """How many batches it can work on at once."""

    def uses_gpu(self, device: str) -> bool:
        """Whether trials with this `training.device` would be trained on a GPU."""

    def finished(
        self, batches: Iterable[Batch], out: Path, progress: Progress, at_once: int = 0
    ) -> Iterator[tuple[Batch, bool]]:
        """Each batch once its records are in the folder, and whether it came to its end: it may have been pruned.

        at_once: how many may be taken from `batches` before the first of them is done; 0 for all.
        """

    def results(
        self, work: Callable[[Job, Path], Result], jobs: list[Job], out: Path
    ) -> Iterator[tuple[Job, Callable[[], Result]]]:
        """Other work, each job once it is done, and how to get at what became of it.

        work: a function of a module, called with a job and a folder to work in: `out`, or one that is thrown away.
        """


class InThisProcess:
    """One batch after another; other work by so many processes."""

    slots = 1

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes

    def uses_gpu(self, device: str) -> bool:
        return pick_device(device).type == "cuda"

    def finished(
        self, batches: Iterable[Batch], out: Path, progress: Progress, at_once: int = 0
    ) -> Iterator[tuple[Batch, bool]]:
        for batch in batches:
            yield batch, batch.train(out, progress)

    def results(
        self, work: Callable[[Job, Path], Result], jobs: list[Job], out: Path
    ) -> Iterator[tuple[Job, Callable[[], Result]]]:
        if self.processes == 1:
            yield from ((job, lambda job=job: work(job, out)) for job in jobs)
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.processes, context, initializer=_begin_process) as pool:
            waiting: dict[Future[Result], Job] = {pool.submit(work, job, out): job for job in jobs}
            try:
                for future in as_completed(waiting):
                    yield waiting[future], future.result
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def _begin_process() -> None:
    """One thread each, since there are as many processes as cores; Ctrl-C ends them at once, and quietly."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent()
