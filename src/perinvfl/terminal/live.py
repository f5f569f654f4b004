"""Progress bars of a run on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TimeRemainingColumn,
)

from perinvfl.runs import progress
from perinvfl.runs.progress import Exchange, name_of
from perinvfl.terminal.console import PlainColumn

if TYPE_CHECKING:
    from perinvfl.runs.trial import Trial


def bars(console: Console, clock: ProgressColumn, disable: bool = False) -> Progress:
    """Bars that count rounds, with a few words about each: `progress.update(task, words=...)`."""
    return Progress(
        SpinnerColumn(finished_text="[green]✓"),
        PlainColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        PlainColumn("{task.fields[words]}"),
        clock,
        console=console,
        disable=disable,
    )


@dataclass
class Bar:
    """Of a batch of trials that is at work."""

    task: TaskID
    rounds: int  # done so far, of all its trials
    risk: str = ""
    mean: str = ""


class Live(progress.Progress):
    """One bar per group of trials: rounds, risk, accuracy, time left; of several runs, one more for all of them."""

    def __init__(self, console: Console, rounds: list[int]) -> None:
        self.console, self.rounds = console, rounds
        self.done = 0  # rounds of runs that are finished
        self.under_way: dict[str, Bar] = {}  # by name of the batch
        self.progress = bars(console, TimeRemainingColumn(elapsed_when_finished=True))
        self.whole: TaskID | None = None

    def __enter__(self) -> "Live":
        self.progress.start()
        if len(self.rounds) > 1:
            self.whole = self.progress.add_task(f"all {len(self.rounds)} runs", total=sum(self.rounds), words="")
        return self

    def __exit__(self, *problem: object) -> None:
        self.progress.stop()

    def skipped(self, trial: "Trial", folder: Path) -> None:
        self.console.print(f"{name_of([trial])}: already done, nothing to do ({folder})")
        self._add_up([trial])

    def started(self, trials: "list[Trial]", rounds_done: int) -> None:
        name = name_of(trials)
        if rounds_done:
            self.console.print(f"{name}: resumes after round {rounds_done}")
        lost = self.under_way.pop(name, None)
        if lost is not None:  # begun again elsewhere
            self.progress.remove_task(lost.task)
        total = trials[0].training.rounds
        task = self.progress.add_task(name, total=total, completed=rounds_done, words="")
        self.under_way[name] = Bar(task, rounds_done * len(trials))

    def preparing(self, trials: "list[Trial]", phase: str, round: int, rounds: int) -> None:
        self._update(trials, risk="" if round == rounds else f"preparing, {phase} {round}/{rounds}")

    def round(
        self, trials: "list[Trial]", rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None:
        if name_of(trials) in self.under_way:
            self.under_way[name_of(trials)].rounds = rounds_done * len(trials)
        self._update(trials, risk=None if risk is None else f"risk {risk:.3f}", completed=rounds_done)
        self._update_whole()

    def evaluated(self, trials: "list[Trial]", rounds_done: int, mean: float | None, task: str) -> None:
        if mean is not None:
            self._update(trials, mean=progress.scored_in_words(mean, task))

    def remark(self, trials: "list[Trial]", words: str) -> None:
        self.console.print(f"{progress.name_of(trials)}: {words}")

    def broke(self, trial: "Trial", round: int, why: str) -> None:
        self.console.print(why, style="yellow")

    def finished(self, trials: "list[Trial]", seconds: float, summary: str = "") -> None:
        bar = self.under_way.pop(name_of(trials), None)
        if bar is not None:
            self.progress.stop_task(bar.task)
        self._add_up(trials)

    def tasks(self, count: progress.Tasks) -> None:
        if self.whole is not None:
            self.progress.update(self.whole, words=progress.tasks_in_words(count))

    def _add_up(self, trials: "list[Trial]") -> None:
        self.done += sum(trial.training.rounds for trial in trials)
        self._update_whole()

    def _update_whole(self) -> None:
        if self.whole is not None:
            self.progress.update(self.whole, completed=self.done + sum(bar.rounds for bar in self.under_way.values()))

    def _update(
        self, trials: "list[Trial]", risk: str | None = None, mean: str | None = None, completed: int | None = None
    ) -> None:
        bar = self.under_way.get(name_of(trials))
        if bar is not None:
            bar.risk = bar.risk if risk is None else risk
            bar.mean = bar.mean if mean is None else mean
            self.progress.update(bar.task, words=f"{bar.risk}  {bar.mean}", completed=completed)
