"""How long a run takes to begin: from the first import to the first round of the demo, over `import torch` alone.

As commands, `python -m perinvfl.train` (which needs nothing but torch) and `perinvfl demo`.
"""

import os
import subprocess
import sys
import tempfile

from benchmarks.common import Row, show

LIMIT = 1.3
REPEATS = 9
TORCH = "import time, torch; print(time.process_time())"
FIRST_ROUND = """
import os, sys, time
import {module} as command
from perinvfl.runs.progress import Lines

def stop(self, *said):
    print(time.process_time(), flush=True)
    os._exit(0)

Lines.round = stop
sys.argv = ["perinvfl", {argument!r}, "--out", sys.argv[1]]
command.main()
"""
RUN = FIRST_ROUND.format(module="perinvfl.train", argument="experiments/demo.toml")
DEMO = FIRST_ROUND.format(module="perinvfl.__main__", argument="demo")


def seconds(program: str) -> float:
    """Of the processor, with one thread: neither other programs count nor threads that wait for each other."""
    # As installed: modules are compiled once, by the untimed run.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | {
        "OMP_NUM_THREADS": "1"
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", program, folder]
        return float(subprocess.check_output(command, text=True, env=environment).split()[-1])


def main() -> None:
    times: dict[str, list[float]] = {TORCH: [], RUN: [], DEMO: []}
    for program in times:
        seconds(program)
    for _ in range(3 if "--short" in sys.argv else REPEATS):  # in turn
        for program, found in times.items():
            found.append(seconds(program))
    torch, run, demo = (min(found) for found in times.values())  # what disturbs a turn only adds to it
    print(f"import torch: {torch:.2f} s; to the first round of the demo: {run:.2f} s; {run / torch:.2f} times")
    print(f"`perinvfl demo`, which also imports what draws its progress: {demo:.2f} s; {demo / torch:.2f} times")
    show([Row("start to the first round of the demo, times import torch", run / torch, LIMIT, at_most=True)])


if __name__ == "__main__":
    main()
