"""The progress of trials on a node, as messages to who began them: a method of `Progress` and its arguments."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perinvfl.cluster.board import Message
from perinvfl.runs.event_log import Event
from perinvfl.runs.progress import Exchange, Progress, Pruned
from perinvfl.runs.records import read_run
from perinvfl.runs.trial import Trial

ALL = -1
PAUSE = 0.2  # seconds at least between messages about rounds
BEFORE_START = "started", "preparing", "remark"  # what may be the first message that arrives
NOT_TOLD: Message = "started", ALL, (0,)  # said in place of a start whose message was lost


class Relay(Progress):
    """Sends what it is told. Rounds are many, so that of several in a short time the last alone is sent.

    send: takes messages, and answers whether the trials are to be given up, and why; "" while they are not.
    """

    def __init__(self, trials: list[Trial], send: Callable[[list[Message]], str]) -> None:
        self.trials, self.send = trials, send
        self.sent = 0.0
        self.unsent: list[Message] = []  # the last round
        self.summary = 0.0, ""  # what `finished` is told: seconds, and more words

    def started(self, trials: list[Trial], rounds_done: int) -> None:
        self._send("started", ALL, rounds_done)

    def preparing(self, trials: list[Trial], phase: str, round: int, rounds: int) -> None:
        if round in (1, rounds) or time.monotonic() - self.sent > PAUSE:
            self._send("preparing", ALL, phase, round, rounds)

    def remark(self, trials: list[Trial], words: str) -> None:
        self._send("remark", self._place(trials[0]) if len(trials) == 1 else ALL, words)

    def round(
        self, trials: list[Trial], rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None:
        self.unsent = [("round", ALL, (rounds_done, risk))]
        if time.monotonic() - self.sent > PAUSE:
            self._stop_if_told(self._send_all([]))

    def evaluated(self, trials: list[Trial], rounds_done: int, mean: float | None, task: str) -> None:
        self._stop_if_told(self._send("evaluated", ALL, rounds_done, mean, task))

    def measured(self, trial: Trial, event: Event) -> None:
        self._send("measured", self._place(trial), event)

    def broke(self, trial: Trial, round: int, why: str) -> None:
        self._send("broke", self._place(trial), round, why)

    def finished(self, trials: list[Trial], seconds: float, summary: str = "") -> None:
        self.summary = seconds, summary  # told once the records have arrived

    def _place(self, trial: Trial) -> int:
        return next(place for place, own in enumerate(self.trials) if own is trial)

    def _send(self, method: str, place: int, *arguments: Any) -> str:
        return self._send_all([(method, place, arguments)])

    def _send_all(self, messages: list[Message]) -> str:
        self.sent = time.monotonic()
        messages, self.unsent = [*self.unsent, *messages], []
        return self.send(messages)

    def _stop_if_told(self, why: str) -> None:
        """After a round, or an evaluation that is on record: nothing is half written then."""
        if why:
            raise Pruned(why)


class Told:
    """Tells progress what the messages of a batch say; what was lost on the way is made up for from the records."""

    def __init__(self, trials: list[Trial], progress: Progress) -> None:
        self.trials, self.progress = trials, progress
        self.before: int | None = None  # rounds that were done when it started; None: that is not told yet
        self.measured: set[tuple[int, int]] = set()  # places of trials, and rounds

    def replay(self, message: Message) -> None:
        method, place, arguments = message
        if self.before is None and method not in BEFORE_START:
            self.replay(NOT_TOLD)
        if method == "started":
            self.before, self.measured = arguments[0], set()
        elif method == "measured":
            self.measured.add((place, arguments[0]["round"]))
        if method in ("broke", "measured"):
            getattr(self.progress, method)(self.trials[place], *arguments)
        else:
            getattr(self.progress, method)(self.trials if place == ALL else [self.trials[place]], *arguments)

    def catch_up(self, out: Path) -> None:
        """Once the records are in the folder."""
        if self.before is None:
            self.replay(NOT_TOLD)
        for place, trial in enumerate(self.trials):
            run = read_run(out / trial.folder)
            for event in () if run is None else run.evaluations:
                if (place, event["round"]) not in self.measured and event["round"] > (self.before or 0):
                    self.progress.measured(trial, event)
