"""All benchmarks, and all of their targets as ratios in one table at the end: `make bench`.

`python -m benchmarks --short` takes fewer turns and leaves out what flushing to disk costs and the networks with
convolutions: some minutes on two idle cores.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.common import ROWS, Row, show

ALL = ("start", "cpu", "memory", "recommended", "cluster", "kernels", "gpu", "durable", "resnet")
LONG_ONLY = ("durable", "resnet")


def rows_of(name: str, short: bool, file: Path) -> list[Row]:
    """Of one benchmark, in a process of its own: threads and memory of one do not disturb the next."""
    print(f"== {name}", flush=True)
    file.write_text("")
    command = [sys.executable, "-m", f"benchmarks.{name}", *(["--short"] if short else [])]
    subprocess.run(command, check=True, env={**os.environ, ROWS: str(file)})
    return [Row(*json.loads(line)) for line in file.read_text().splitlines()]


def main() -> None:
    short = "--short" in sys.argv[1:]
    on_gpu = torch.cuda.is_available()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ALL:
            if (on_gpu or name != "gpu") and not (short and name in LONG_ONLY):
                rows += rows_of(name, short, Path(folder) / "rows")
    print("== all")
    show(rows)
    if not on_gpu:
        print("GPU: no GPU here; benchmarks/RESULTS.md has the last measured figures")
    if short:
        print(f"left out: {', '.join(LONG_ONLY)}")


if __name__ == "__main__":
    main()
