"""A parent whose two processes write down who they are and then work for a long time."""

import os
import sys
import time
from pathlib import Path

from perinvfl.runs.batches import InThisProcess


def work(job: int, folder: Path) -> int:
    (folder / f"{job}.pid").write_text(str(os.getpid()))
    time.sleep(600)
    return job


if __name__ == "__main__":
    for _, result in InThisProcess(2).results(work, [1, 2], Path(sys.argv[1])):
        result()
