"""What a run across machines tells as it goes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perinvfl.runs.trial import Trial


class Watch:
    """What is told about a run under way; the base tells nothing."""

    def waiting(self, missing: list[str]) -> None: ...
    def skipped(self, trial: Trial, folder: Path) -> None: ...
    def started(self, trial: Trial, rounds_done: int) -> None: ...
    def heard(self, replies: int, asked: int) -> None: ...
    def round(self, progress: "Progress") -> None: ...
    def left_out(self, site: str, round: int, why: str) -> None: ...
    def evaluated(self, trial: Trial, round: int, mean: float | None) -> None: ...
    def broke(self, trial: Trial, why: str) -> None: ...
    def finished(self, trial: Trial, seconds: float, told: str) -> None: ...


@dataclass(frozen=True)
class Progress:
    """One round as a person would want to see it."""

    trial: Trial
    round: int
    replies: int
    asked: int
    risk: float | None
    seconds: float
    bytes_up: int
    bytes_down: int


class Plain(Watch):
    """One line an event, for logs and where there is no terminal."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.say = say
        self.last: tuple[str, ...] = ()  # said already

    def waiting(self, missing: list[str]) -> None:
        if self.last != tuple(missing):
            self.say(f"waiting for {', '.join(missing)}")
        self.last = tuple(missing)

    def skipped(self, trial: Trial, folder: Path) -> None:
        self.say(f"{_name(trial)}: already done, nothing to do ({folder})")

    def started(self, trial: Trial, rounds_done: int) -> None:
        goes_on = f", going on after round {rounds_done}" if rounds_done else ""
        self.say(f"{_name(trial)}: {trial.training.rounds} rounds{goes_on}")

    def round(self, progress: Progress) -> None:
        self.say(f"{_name(progress.trial)}: {in_words(progress)}")

    def left_out(self, site: str, round: int, why: str) -> None:
        self.say(f"round {round} goes on without {site}: {why}")

    def evaluated(self, trial: Trial, round: int, mean: float | None) -> None:
        if mean is not None:
            self.say(f"{_name(trial)}: round {round}, mean over the spectrum {mean:.4f}")

    def broke(self, trial: Trial, why: str) -> None:
        self.say(why)

    def finished(self, trial: Trial, seconds: float, told: str) -> None:
        self.say(f"{_name(trial)}: done in {seconds:.1f} s{'; ' + told if told else ''}")


def in_words(progress: Progress) -> str:
    risk = "" if progress.risk is None else f", risk {progress.risk:.4f}"
    return (
        f"round {progress.round}, {progress.replies}/{progress.asked} replies{risk}, {progress.seconds:.2f} s, "
        f"{in_bytes(progress.bytes_up)} up, {in_bytes(progress.bytes_down * progress.asked)} down"
    )


def in_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _name(trial: Trial) -> str:
    return f"{trial.label}, seed {trial.seed}"
