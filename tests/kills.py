"""Processes that are killed at a step that is known beforehand."""

import builtins
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(at: int) -> None:
    """From here on this process is killed at its n-th step: a folder made, a file begun, flushed, moved or removed."""
    left = at

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                die()
            return real(*arguments, **named)

        return call

    opens = builtins.open

    def torn(path: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        nonlocal left
        file = opens(path, mode, *rest, **named)
        if mode == "wb":
            left -= 1
            if left == 0:  # in the middle of writing
                file.write(b"half of a state")
                file.flush()
                die()
        return file

    builtins.open = torn  # type: ignore[assignment]
    for name in ("mkdir", "fsync", "replace", "unlink"):
        setattr(os, name, counted(getattr(os, name)))


def survives(work: Callable[[], object], at: int = 0) -> bool:
    """Do some work in a child that is killed, by itself or at its n-th step; whether it came to its end before."""
    sys.stdout.flush()  # else the child says it again
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if at:
                arm(at)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, "the child failed"
    return True
