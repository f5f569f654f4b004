"""Progress bars of a run across machines."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import TaskID, TimeElapsedColumn

from perinvfl.runs.progress import Exchange, Progress, far_in_words, in_bytes, name_of, scored_in_words
from perinvfl.terminal.live import bars

if TYPE_CHECKING:
    from perinvfl.runs.trial import Trial


class LiveDeployment(Progress):
    """One bar per trial: rounds, replies, risk, time, bytes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = bars(console, TimeElapsedColumn(), disable=not console.is_terminal)
        self.task: TaskID | None = None
        self.words, self.last, self.mean = "", "", ""  # now; of the last round; of the last evaluation

    def __enter__(self) -> "LiveDeployment":
        self.progress.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.progress.stop()

    def waiting(self, missing: list[str]) -> None:
        self._update(f"waiting for {', '.join(missing)}")

    def skipped(self, trial: "Trial", folder: Path) -> None:
        self.console.print(f"{name_of([trial])}: already done, nothing to do")

    def started(self, trials: "list[Trial]", rounds_done: int) -> None:
        name = name_of(trials)
        if rounds_done:
            self.console.print(f"{name}: resumes after round {rounds_done}")
        self.words, self.last, self.mean = "", "", ""
        self.task = self.progress.add_task(name, total=trials[0].training.rounds, completed=rounds_done, words="")

    def heard(self, replies: int, asked: int) -> None:
        self._update(f"{replies}/{asked} replies  {self.last}")

    def preparing(self, trials: "list[Trial]", phase: str, round: int, rounds: int) -> None:
        self.last = "" if round == rounds else f"preparing, {phase} {round}/{rounds}"
        self._update(self.last)

    def round(
        self, trials: "list[Trial]", rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None:
        if exchange is not None:
            risk_words = "" if risk is None else f"risk {risk:.3f}  "
            self.last = f"{risk_words}{exchange.seconds:.1f} s per round  {in_bytes(exchange.bytes_up)} up"
            self._update(f"{exchange.replies}/{exchange.asked} replies  {self.last}", completed=rounds_done)

    def remark(self, trials: "list[Trial]", words: str) -> None:
        self.console.print(words)

    def left_out(self, site: str, round: int, why: str) -> None:
        self.console.print(f"round {round} goes on without {site}: {why}", style="yellow")

    def far(self, site: str, round: int, how: str) -> None:
        self.console.print(far_in_words(site, round, how), style="yellow")

    def server_away(self, words: str) -> None:
        self.console.print(words, style="yellow")

    def evaluated(self, trials: "list[Trial]", rounds_done: int, mean: float | None, task: str) -> None:
        self.mean = "" if mean is None else f"  {scored_in_words(mean, task)}"
        self._update(self.words)

    def broke(self, trial: "Trial", round: int, why: str) -> None:
        self.console.print(why, style="yellow")

    def finished(self, trials: "list[Trial]", seconds: float, summary: str = "") -> None:
        if summary:
            self.console.print(summary)
        if self.task is not None:
            self.progress.stop_task(self.task)

    def _update(self, words: str, **fields: int) -> None:
        self.words = words
        if self.task is not None:
            self.progress.update(self.task, words=words + self.mean, **fields)  # type: ignore[arg-type]
