"""Work of a library that does not listen while it computes, given up after a time; Ctrl-C is heard meanwhile."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
GIVEN_UP = threading.Event()  # that a thread of this process computes what nobody waits for any more


def within(seconds: float, work: Callable[[], T]) -> T:
    """What the work gives; TimeoutError where it takes longer. Its thread then goes on until the process ends.

    >>> within(60, lambda: 3)
    3
    >>> import time
    >>> within(0.01, lambda: time.sleep(0.2))
    Traceback (most recent call last):
    TimeoutError: it takes longer than 0.01 s
    """
    made: list[T] = []
    failed: list[BaseException] = []

    def do() -> None:
        try:
            made.append(work())
        except BaseException as error:  # raised again below, in the thread that asked
            failed.append(error)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not made:
        GIVEN_UP.set()
        raise TimeoutError(f"it takes longer than {seconds:.3g} s")
    return made[0]
