"""What it costs to search on a Ray cluster on this machine, over one process with the same cores.

The same search, twice as commands, in turn: `perinvfl sweep` in one process with N threads, and with `--on ray` on a
cluster of N cores, one for each task. Everything is timed, what starts and ends Ray included; and so is how long that
alone takes, with a search that is done already.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import Row, show

LIMIT = 1.1  # on Ray over one process
TRIALS = 24
FILE = """
name = "search"
[data]
benchmark = "rc_mnist"
train_per_client = 2000
test_per_client = 500
[training]
rounds = {rounds}
evaluate_every = {rounds}
batch_size = 500
device = "cpu"
[[algorithm]]
name = "perinvfl"
"""


def seconds_of(file: Path, out: Path, *options: str) -> float:
    cores = os.cpu_count() or 1
    line = [sys.executable, "-m", "perinvfl", "sweep", str(file), "--trials", str(TRIALS), "--out", str(out), "--quiet"]
    began = time.perf_counter()
    subprocess.run([*line, *options], check=True, env={**os.environ, "OMP_NUM_THREADS": str(cores)})
    return time.perf_counter() - began


def main(rounds: int = 60, repeats: int = 3) -> None:
    times: dict[str, list[float]] = {"one process": [], "on Ray": [], "nothing to do": [], "nothing to do on Ray": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "search.toml"
        file.write_text(FILE.format(rounds=rounds))
        for repeat in range(repeats):
            for name, options in {"one process": (), "on Ray": ("--on", "ray")}.items():
                out = Path(folder) / f"{name} {repeat}"
                times[name].append(seconds_of(file, out, *options))
                again = "nothing to do" + (" on Ray" if options else "")
                times[again].append(seconds_of(file, out, *options))
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in times.items():
        print(f"{name}: {medians[name]:.1f} s ({', '.join(f'{value:.1f}' for value in found)})")
    ratio = medians["on Ray"] / medians["one process"]
    print(f"{TRIALS} trials, {os.cpu_count()} cores: {ratio:.3f} times one process")
    show([Row("search on Ray, times one process with the same cores", ratio, LIMIT, at_most=True)])


if __name__ == "__main__":
    main(*((20, 1) if "--short" in sys.argv else map(int, sys.argv[1:3])))
