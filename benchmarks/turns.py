"""Rivals, each in a process of its own, taken in turn: none finds the memory or the threads of another.

What is compared is the least of many turns. Other programs that share the machine can only make a turn longer, so the
least is the closest to what the work takes; and as the turns alternate, all rivals meet the same quiet moments.
"""

import multiprocessing
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

PAUSE = 0.2  # threads of the one before spin for a while


class Seconds(NamedTuple):
    processor: float  # of this process, all of its threads
    clock: float


def least_seconds(
    rivals: Mapping[str, Callable[[], Callable[[], object]]], turns: int, threads: int = 1
) -> dict[str, Seconds]:
    """Of the work that each rival makes, in its process, when it is called; the first turn is not counted."""
    start = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    for name, rival in rivals.items():
        pipes[name], theirs = start.Pipe()
        start.Process(target=_work_when_told, args=(rival, threads, theirs), daemon=True).start()
        theirs.close()
        pipes[name].recv()
    times: dict[str, list[Seconds]] = {name: [] for name in rivals}
    for _ in range(turns + 1):
        for name, pipe in pipes.items():
            time.sleep(PAUSE if threads > 1 else 0)
            pipe.send("work")
            times[name].append(pipe.recv())
    for pipe in pipes.values():
        pipe.close()
    return {name: Seconds(*map(min, zip(*found[1:], strict=True))) for name, found in times.items()}


def _work_when_told(rival: Callable[[], Callable[[], object]], threads: int, pipe: Connection) -> None:
    torch.set_num_threads(threads)
    work = rival()
    pipe.send("ready")
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        began = Seconds(time.process_time(), time.perf_counter())
        work()
        pipe.send(Seconds(time.process_time() - began.processor, time.perf_counter() - began.clock))
