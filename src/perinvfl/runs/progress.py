"""What work under way tells, on one machine and across machines."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perinvfl.runs.trial import Trial


@dataclass(frozen=True)
class Exchange:
    """What a round across machines came to besides its risk."""

    replies: int
    asked: int
    seconds: float
    bytes_up: int
    bytes_down: int


class Progress:
    """The base tells nothing; a display overrides what it shows. Trials are those that run as one program."""

    def skipped(self, trial: "Trial", folder: Path) -> None: ...
    def started(self, trials: "list[Trial]", rounds_done: int) -> None: ...
    def preparing(self, trials: "list[Trial]", phase: str, round: int, rounds: int) -> None: ...
    def remark(self, trials: "list[Trial]", words: str) -> None: ...
    def round(
        self, trials: "list[Trial]", rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None: ...
    def evaluated(self, trials: "list[Trial]", rounds_done: int, mean: float | None) -> None: ...
    def broke(self, trial: "Trial", round: int, why: str) -> None: ...
    def finished(self, trials: "list[Trial]", seconds: float, summary: str = "") -> None: ...

    # Across machines
    def waiting(self, missing: list[str]) -> None: ...
    def heard(self, replies: int, asked: int) -> None: ...
    def left_out(self, site: str, round: int, why: str) -> None: ...
    def far(self, site: str, round: int, how: str) -> None: ...
    def server_away(self, words: str) -> None: ...


class Lines(Progress):
    """One line per event, for logs and where there is no terminal."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.say = say
        self.began, self.before, self.risk = 0.0, 0, ""
        self.waited_for: tuple[str, ...] = ()  # said already
        self.phase = ""  # likewise

    def skipped(self, trial: "Trial", folder: Path) -> None:
        self.say(f"{name_of([trial])}: already done, nothing to do ({folder})")

    def started(self, trials: "list[Trial]", rounds_done: int) -> None:
        resumes = f", resumes after round {rounds_done}" if rounds_done else ""
        self.began, self.before, self.risk, self.phase = time.perf_counter(), rounds_done, "", ""
        self.say(f"{name_of(trials)}: {trials[0].training.rounds} rounds{resumes}")

    def preparing(self, trials: "list[Trial]", phase: str, round: int, rounds: int) -> None:
        if phase != self.phase:
            self.say(f"{name_of(trials)}: preparing, {phase}, {rounds} rounds")
        self.phase = phase
        self.began = time.perf_counter()  # what is left is told of the rounds that follow

    def remark(self, trials: "list[Trial]", words: str) -> None:
        self.say(f"{name_of(trials)}: {words}")

    def round(
        self, trials: "list[Trial]", rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None:
        self.risk = "" if risk is None else f", risk {risk:.4f}"
        if exchange is not None:
            self.say(f"{name_of(trials)}: round {rounds_done}, {exchange_in_words(exchange, risk)}")

    def evaluated(self, trials: "list[Trial]", rounds_done: int, mean: float | None) -> None:
        scored = "" if mean is None else f", mean over the spectrum {mean:.4f}"
        rounds = trials[0].training.rounds
        pace = (time.perf_counter() - self.began) / max(1, rounds_done - self.before)
        left = f", about {pace * (rounds - rounds_done):.0f} s left" if rounds_done < rounds else ""
        self.say(f"{name_of(trials)}: round {rounds_done} of {rounds}{self.risk}{scored}{left}")

    def broke(self, trial: "Trial", round: int, why: str) -> None:
        self.say(why)

    def finished(self, trials: "list[Trial]", seconds: float, summary: str = "") -> None:
        self.say(f"{name_of(trials)}: done in {seconds:.1f} s{'; ' + summary if summary else ''}")

    def waiting(self, missing: list[str]) -> None:
        if self.waited_for != tuple(missing):
            self.say(f"waiting for {', '.join(missing)}")
        self.waited_for = tuple(missing)

    def left_out(self, site: str, round: int, why: str) -> None:
        self.say(f"round {round} goes on without {site}: {why}")

    def far(self, site: str, round: int, how: str) -> None:
        self.say(far_in_words(site, round, how))

    def server_away(self, words: str) -> None:
        self.say(words)


def name_of(trials: "list[Trial]") -> str:
    first = f"{trials[0].title}, seed {trials[0].seed}"
    return first if len(trials) == 1 else f"{first} and {len(trials) - 1} more"


def exchange_in_words(exchange: Exchange, risk: float | None) -> str:
    mean_risk = "" if risk is None else f", risk {risk:.4f}"
    return (
        f"{exchange.replies}/{exchange.asked} replies{mean_risk}, {exchange.seconds:.2f} s, "
        f"{in_bytes(exchange.bytes_up)} up, {in_bytes(exchange.bytes_down)} down"
    )


def far_in_words(site: str, round: int, how: str) -> str:
    return (
        f"round {round}: the update of {site} is far from the others' ({how}); said once, and on record every time. "
        "algorithm.trimming and algorithm.clipping bound what one site can do."
    )


def in_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
