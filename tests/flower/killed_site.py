"""Kill a site at every step of every round that touches its disk, ask it again, and see that nothing is lost.

python killed_site.py FOLDER prints how often a process was killed. A process of its own, because it forks: the child
does one round and is killed at its n-th step; the parent plays the server.
"""

import builtins
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flower.test_site import assert_equal, assignment, kept, model

from perinvfl.flower.site import Site

ROUNDS = 3


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(at: int) -> None:
    """From here on this process is killed at its n-th step: a folder made, a file begun, flushed or renamed."""
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

    builtins.open = torn
    for name in ("mkdir", "fsync", "replace"):
        setattr(os, name, counted(getattr(os, name)))


def survives(at: int, work: Callable[[], object]) -> bool:
    """Do some work in a child that is killed at its n-th step; whether it had fewer and came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            arm(at)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, "the site failed"
    return True


def ask(folder: Path, round: int) -> object:
    return Site(folder).train(assignment(round, round - 1), model(round))


def main(root: Path) -> int:
    for round in range(ROUNDS):
        ask(root / "whole", round)
    expected = kept(Site(root / "whole"), ROUNDS - 1)
    kills = 0
    for victim in range(ROUNDS):
        at, ended = 0, False
        while not ended:
            at += 1
            folder = root / f"killed-{victim}-{at}"
            for round in range(ROUNDS):
                if round == victim:
                    ended = survives(at, lambda folder=folder, round=round: ask(folder, round))  # type: ignore[misc]
                    kills += not ended
                if round != victim or not ended:
                    ask(folder, round)  # asked again, as the server does
            assert_equal(kept(Site(folder), ROUNDS - 1), expected)
    return kills


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(main(Path(sys.argv[1])))
