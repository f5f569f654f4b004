"""Progress bars of a run on this machine."""

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


class Live(progress.Progress):
    """One bar per group of trials: rounds, risk, accuracy, time left; of several runs, one more for all of them."""

    def __init__(self, console: Console, rounds: list[int]) -> None:
        self.console, self.rounds = console, rounds
        self.done = 0  # rounds of runs that are finished
        self.progress = bars(console, TimeRemainingColumn(elapsed_when_finished=True))
        self.task: TaskID | None = None
        self.whole: TaskID | None = None
        self.risk, self.mean = "", ""

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
        self.risk, self.mean = "", ""
        name = name_of(trials)
        if rounds_done:
            self.console.print(f"{name}: resumes after round {rounds_done}")
        self.task = self.progress.add_task(name, total=trials[0].training.rounds, completed=rounds_done, words="")

    def preparing(self, trials: "list[Trial]", phase: str, round: int, rounds: int) -> None:
        self.risk = "" if round == rounds else f"preparing, {phase} {round}/{rounds}"
        self._update()

    def round(
        self, trials: "list[Trial]", rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None:
        if risk is not None:
            self.risk = f"risk {risk:.3f}"
        self._update(completed=rounds_done)
        if self.whole is not None:
            self.progress.update(self.whole, completed=self.done + rounds_done * len(trials))

    def evaluated(self, trials: "list[Trial]", rounds_done: int, mean: float | None) -> None:
        if mean is not None:
            accuracy = trials[0].federation().task != "regression"
            self.mean = f"shifted accuracy {100 * mean:.1f}" if accuracy else f"shifted error {mean:.3g}"
        self._update()

    def remark(self, trials: "list[Trial]", words: str) -> None:
        self.console.print(f"{progress.name_of(trials)}: {words}")

    def broke(self, trial: "Trial", round: int, why: str) -> None:
        self.console.print(why, style="yellow")

    def finished(self, trials: "list[Trial]", seconds: float, summary: str = "") -> None:
        self._update()
        if self.task is not None:
            self.progress.stop_task(self.task)
        self._add_up(trials)

    def _add_up(self, trials: "list[Trial]") -> None:
        self.done += sum(trial.training.rounds for trial in trials)
        if self.whole is not None:
            self.progress.update(self.whole, completed=self.done)

    def _update(self, **fields: int) -> None:
        if self.task is not None:
            self.progress.update(self.task, words=f"{self.risk}  {self.mean}", **fields)  # type: ignore[arg-type]
