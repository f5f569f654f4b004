"""What all fuzzers share: inputs from a seed and a number, odd values, and what counts as a failure.

An input is answered rightly by a result or by the project's own error. Anything else is a failure: another exception,
an answer that takes too long, or more memory than a machine may be asked for.
"""

import random
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from perinvfl.errors import UserError

SLOWEST = 60.0  # seconds that one input may take on a busy machine
MEMORY = 4 * 2**30  # bytes that the inputs may take on top of what the process has at the start


class TooSlow(BaseException):
    """Not caught by a reader that takes any exception for a damaged file."""


@dataclass(frozen=True)
class Fuzzer:
    name: str
    make: Callable[[random.Random], Any]
    feed: Callable[[Any], object]
    refusals: tuple[type[Exception], ...] = (UserError,)


@dataclass
class Outcome:
    name: str
    seed: str
    inputs: int = 0
    refused: int = 0
    failures: dict[str, str] = field(default_factory=dict)  # by where they happened: the first of each, in full
    counts: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        failed = sum(self.counts.values())
        return f"{self.name}: {self.inputs} inputs, {self.refused} refused, {failed} failed (seed {self.seed})"

    def report(self) -> str:
        parts = [f"{self.counts[place]} x {place} {text}" for place, text in self.failures.items()]
        return "\n\n".join([self.summary(), *parts])


def run(fuzzer: Fuzzer, seed: str, inputs: int | None = None, seconds: float | None = None, first: int = 0) -> Outcome:
    """Feed so many inputs, or for so long. `python -m tests.fuzz --only NAME --seed SEED --first N --inputs 1` repeats
    one of them."""
    outcome, end = Outcome(fuzzer.name, seed), None if seconds is None else time.monotonic() + seconds
    with _bounded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while (inputs is None or outcome.inputs < inputs) and (end is None or time.monotonic() < end):
            _feed_one(fuzzer, outcome, first + outcome.inputs)
            outcome.inputs += 1
    return outcome


def _feed_one(fuzzer: Fuzzer, outcome: Outcome, number: int) -> None:
    rng = random.Random(f"{fuzzer.name} {outcome.seed} {number}")
    given = fuzzer.make(rng)
    signal.setitimer(signal.ITIMER_REAL, SLOWEST)
    try:
        fuzzer.feed(given)
    except fuzzer.refusals as refusal:
        outcome.refused += 1
        if not str(refusal).strip() or len(str(refusal)) > 20_000:
            _failed(outcome, number, given, refusal, "a refusal that nobody can read")
    except (Exception, TooSlow) as error:
        _failed(outcome, number, given, error, "")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _failed(outcome: Outcome, number: int, given: Any, error: BaseException, what: str) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/perinvfl/" in frame.filename] or frames
    place = f"{type(error).__name__} {own[-1].filename}:{own[-1].lineno} {what}"
    outcome.counts[place] += 1
    if place not in outcome.failures:
        again = f"python -m tests.fuzz --only {outcome.name} --seed {outcome.seed} --first {number} --inputs 1"
        told = "".join(traceback.format_exception(error))[-3000:]
        outcome.failures[place] = f"{what} {again}\n{short(given)}\n{told}"


def short(value: Any, most: int = 1500) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = "(a value that Python does not print)"
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


@contextmanager
def _bounded() -> Iterator[None]:
    """A bomb ends in MemoryError instead of ending the machine, and an endless loop in TooSlow."""

    def stop(*_: object) -> None:
        raise TooSlow(f"no answer within {SLOWEST:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)
