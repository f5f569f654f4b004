"""What it costs that records and checkpoints survive a power cut: runs that flush to disk beside runs that do not.

Lines are flushed when a checkpoint counts on them, and a checkpoint is written when that takes a twentieth of the time
at most, so the cost of a run is bounded whatever the disk. Across machines the server and the sites flush at every
step: there it is seconds in a step. Numbers are of the disk that holds the temporary folder.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common import Row, median_seconds, rival_seconds, show
from perinvfl.core.files import write_atomically
from perinvfl.runs.event_log import Writer
from perinvfl.runs.experiment import Experiment, build_experiment
from perinvfl.runs.progress import Progress
from perinvfl.runs.train import train

LIMIT = 1.1  # a run that flushes over one that does not
DIGITS = {"benchmark": "rc_mnist", "train_per_client": 200, "test_per_client": 100}
RUNS = {
    "next to no data, 300 rounds": ({"benchmark": "random"}, {"hidden": [5]}, 300),
    "digits, the paper's network, 60 rounds": (DIGITS, {}, 60),
}


def experiment(name: str) -> Experiment:
    data, model, rounds = RUNS[name]
    algorithm = {"name": "perinvfl", "learning_rate": 0.01, "personal_learning_rate": 0.01}
    training = {"rounds": rounds, "evaluate_every": 5, "device": "cpu"}
    return build_experiment({"data": data, "model": model, "training": training, "algorithm": algorithm})


@contextmanager
def unflushed() -> Iterator[None]:
    real = os.fsync
    os.fsync = lambda file: None  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fsync = real


def run(asked: Experiment) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train(asked, Path(folder), Progress())


def run_unflushed(asked: Experiment) -> None:
    with unflushed():
        run(asked)


def step_seconds() -> dict[str, float]:
    """A line and a checkpoint of 1.3 MB, as a server writes them in a step."""
    content = bytes(1_300_000)
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder) / "run")
        writer.begin("start", format=3)

        def step() -> None:
            writer.write("partial", round=1)
            writer.sync()
            write_atomically(Path(folder) / "run/server.pt", content)

        def step_unflushed() -> None:
            with unflushed():
                step()

        return {"flushed": median_seconds(step, 21), "not flushed": median_seconds(step_unflushed, 21)}


def main() -> None:
    rows = []
    for name in RUNS:
        asked = experiment(name)
        seconds = rival_seconds({"flushed": lambda a=asked: run(a), "not": lambda a=asked: run_unflushed(a)}, 3)  # type: ignore[misc]
        ratio = seconds["flushed"] / seconds["not"]
        print(f"{name}: {seconds['flushed']:.2f} s, without flushing {seconds['not']:.2f} s, {ratio:.3f} times")
        rows.append(Row(f"flushed to disk, {name}: times not flushed", ratio, LIMIT, at_most=True))
    step = step_seconds()
    print(f"a step of a server: {1000 * step['flushed']:.1f} ms, without flushing {1000 * step['not flushed']:.1f} ms")
    show(rows)


if __name__ == "__main__":
    main()
