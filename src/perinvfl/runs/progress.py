"""What work under way tells, on one machine and across machines."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perinvfl.core.saying import say
from perinvfl.runs.event_log import Event

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


@dataclass(frozen=True)
class Tasks:
    """How far a search is that several workers share; a task is a batch of trials."""

    done: int
    at_work: int
    waiting: int
    nodes: int


class Pruned(Exception):
    """Raised by who watches: these trials are not worth going on with. Says why."""


class Progress:
    """The base tells nothing; a display overrides what it shows. Trials are those that run as one program."""

    def skipped(self, trial: "Trial", folder: Path) -> None: ...
    def started(self, trials: "list[Trial]", rounds_done: int) -> None: ...
    def preparing(self, trials: "list[Trial]", phase: str, round: int, rounds: int) -> None: ...
    def remark(self, trials: "list[Trial]", words: str) -> None: ...
    def round(
        self, trials: "list[Trial]", rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None: ...
    def evaluated(self, trials: "list[Trial]", rounds_done: int, mean: float | None, task: str) -> None: ...
    def measured(self, trial: "Trial", event: Event) -> None: ...  # an evaluation as it is on record
    def broke(self, trial: "Trial", round: int, why: str) -> None: ...
    def finished(self, trials: "list[Trial]", seconds: float, summary: str = "") -> None: ...

    # Several batches of trials at once
    def tasks(self, count: Tasks) -> None: ...

    # Across machines
    def waiting(self, missing: list[str]) -> None: ...
    def heard(self, replies: int, asked: int) -> None: ...
    def left_out(self, site: str, round: int, why: str) -> None: ...
    def far(self, site: str, round: int, how: str) -> None: ...
    def server_away(self, words: str) -> None: ...


class Several(Progress):
    """Passes everything on to several watches in turn."""

    def __init__(self, watches: Sequence[Progress]) -> None:
        self.watches = watches

    def skipped(self, trial: "Trial", folder: Path) -> None:
        for watch in self.watches:
            watch.skipped(trial, folder)

    def started(self, trials: "list[Trial]", rounds_done: int) -> None:
        for watch in self.watches:
            watch.started(trials, rounds_done)

    def preparing(self, trials: "list[Trial]", phase: str, round: int, rounds: int) -> None:
        for watch in self.watches:
            watch.preparing(trials, phase, round, rounds)

    def remark(self, trials: "list[Trial]", words: str) -> None:
        for watch in self.watches:
            watch.remark(trials, words)

    def round(
        self, trials: "list[Trial]", rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None:
        for watch in self.watches:
            watch.round(trials, rounds_done, risk, exchange)

    def evaluated(self, trials: "list[Trial]", rounds_done: int, mean: float | None, task: str) -> None:
        for watch in self.watches:
            watch.evaluated(trials, rounds_done, mean, task)

    def measured(self, trial: "Trial", event: Event) -> None:
        for watch in self.watches:
            watch.measured(trial, event)

    def broke(self, trial: "Trial", round: int, why: str) -> None:
        for watch in self.watches:
            watch.broke(trial, round, why)

    def finished(self, trials: "list[Trial]", seconds: float, summary: str = "") -> None:
        for watch in self.watches:
            watch.finished(trials, seconds, summary)

    def tasks(self, count: Tasks) -> None:
        for watch in self.watches:
            watch.tasks(count)


def scored_in_words(mean: float, task: str) -> str:
    """The mean over all test contexts of the spectrum, in every display.

    >>> scored_in_words(0.8213, "binary"), scored_in_words(0.8213, "regression")
    ('test accuracy 82.1 %', 'test error 0.821')
    """
    return f"test error {mean:.3g}" if task == "regression" else f"test accuracy {100 * mean:.1f} %"


@dataclass
class Stand:
    """Where a batch of trials is."""

    began: float
    before: int  # rounds that were done when it resumed
    risk: str = ""
    phase: str = ""


class Lines(Progress):
    """One line per event, for logs and where there is no terminal."""

    def __init__(self, say: Callable[[str], None] = say) -> None:
        self.say = say
        self.stands: dict[str, Stand] = {}  # by name: several batches may be at work at once
        self.waited_for: tuple[str, ...] = ()  # said already
        self.tasks_said = -1, -1  # likewise: how many were done, on how many nodes

    def skipped(self, trial: "Trial", folder: Path) -> None:
        self.say(f"{name_of([trial])}: already done, nothing to do ({folder})")

    def started(self, trials: "list[Trial]", rounds_done: int) -> None:
        resumes = f", resumes after round {rounds_done}" if rounds_done else ""
        self.stands[name_of(trials)] = Stand(time.perf_counter(), rounds_done)
        self.say(f"{name_of(trials)}: {trials[0].training.rounds} rounds{resumes}")

    def preparing(self, trials: "list[Trial]", phase: str, round: int, rounds: int) -> None:
        stand = self._stand(trials)
        if phase != stand.phase and rounds > 1:  # a single round is soon over
            self.say(f"{name_of(trials)}: preparing with {rounds} rounds of the {phase} model")
        stand.phase = phase
        stand.began = time.perf_counter()  # what is left is told of the rounds that follow

    def remark(self, trials: "list[Trial]", words: str) -> None:
        self.say(f"{name_of(trials)}: {words}")

    def round(
        self, trials: "list[Trial]", rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None:
        self._stand(trials).risk = "" if risk is None else f", risk {risk:.4f}"
        if exchange is not None:
            self.say(f"{name_of(trials)}: round {rounds_done}, {exchange_in_words(exchange, risk)}")

    def evaluated(self, trials: "list[Trial]", rounds_done: int, mean: float | None, task: str) -> None:
        scored = "" if mean is None else f", {scored_in_words(mean, task)}"
        rounds, stand = trials[0].training.rounds, self._stand(trials)
        pace = (time.perf_counter() - stand.began) / max(1, rounds_done - stand.before)
        left = f", about {pace * (rounds - rounds_done):.0f} s left" if rounds_done < rounds else ""
        self.say(f"{name_of(trials)}: round {rounds_done} of {rounds}{stand.risk}{scored}{left}")

    def broke(self, trial: "Trial", round: int, why: str) -> None:
        self.say(why)

    def finished(self, trials: "list[Trial]", seconds: float, summary: str = "") -> None:
        self.say(f"{name_of(trials)}: done in {seconds:.1f} s{'; ' + summary if summary else ''}")

    def _stand(self, trials: "list[Trial]") -> Stand:
        return self.stands.setdefault(name_of(trials), Stand(time.perf_counter(), 0))

    def tasks(self, count: Tasks) -> None:
        if (count.done, count.nodes) != self.tasks_said:
            self.say(tasks_in_words(count))
        self.tasks_said = count.done, count.nodes

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


def tasks_in_words(count: Tasks) -> str:
    nodes = "1 node" if count.nodes == 1 else f"{count.nodes} nodes"
    whole = count.done + count.at_work + count.waiting
    return f"{count.done} of {whole} tasks done, {count.at_work} at work, {count.waiting} waiting; {nodes}"


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
