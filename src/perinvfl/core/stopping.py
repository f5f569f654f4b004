"""Processes that end when they are told to, whatever they are in the middle of."""

import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import NoReturn

from perinvfl.core.patience import GIVEN_UP

STOPPED = 130  # exit code after Ctrl-C
GRACE = 3.0  # seconds in which a process may end by itself
SIGNALS = (signal.SIGINT, signal.SIGTERM)
TOLD = threading.Event()  # that this process was told to stop


def on_stop(tell: Callable[[int], None], grace: float = GRACE) -> None:
    """From now on Ctrl-C and SIGTERM call `tell`, with their number, in a thread of their own.

    What is under way may then come to its end, within `grace` seconds and until the second signal; after that the
    process ends at once, as if it were killed. The thread hears of a signal even while the main one computes.
    """
    hearing, noting = os.pipe()
    os.set_blocking(noting, False)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)  # the number is written to the pipe before
    signal.set_wakeup_fd(noting, warn_on_full_buffer=False)
    threading.Thread(target=_hear, args=(hearing, tell, grace), daemon=True).start()


def exit_on_sigterm() -> None:
    """SIGTERM unwinds the stack as Ctrl-C does, so that what this process started is ended too."""

    def exit(number: int, _: object) -> NoReturn:
        TOLD.set()
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, exit)


def end_with_parent() -> None:
    """From now on this process, which `multiprocessing` started, ends when its parent has ended, however that was:
    there is nobody left to work for."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def end_process(code: int) -> NoReturn:
    """Where a process was stopped, without what Python does at its end: libraries take seconds to put themselves away,
    and another Ctrl-C would meet them in the middle of it. Where a thread was given up, a library that put itself away
    would pull the ground from under it."""
    if not TOLD.is_set() and not GIVEN_UP.is_set() and code != STOPPED:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):  # closed by the shell, or by who read it
            stream.flush()
    os._exit(code)


def _hear(hearing: int, tell: Callable[[int], None], grace: float) -> None:
    number = _heard(hearing)
    TOLD.set()
    tell(number)
    _heard(hearing, grace)
    os._exit(128 + number)


def _heard(hearing: int, seconds: float | None = None) -> int:
    """The next signal to stop, or 0 where there is none within so many seconds.

    Any other signal, such as a timer's, is written to the pipe as well and means nothing here.
    """
    ends = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if ends is None else max(ends - time.monotonic(), 0.0)
        if not select.select([hearing], [], [], left)[0]:
            return 0
        number = os.read(hearing, 1)[0]
        if number in SIGNALS:
            return number
