"""One process that trains the same experiment again and again, stopped at random rounds and resumed, until it is ended.

python simulator.py EXPERIMENT.toml FOLDER SEED prints a line after each run: `same`, or what differs.
"""

import random
import shutil
import sys
import time
from pathlib import Path

import torch

from perinvfl.runs.experiment import Experiment, read_experiment
from perinvfl.runs.group import forget_prepared
from perinvfl.runs.progress import Progress
from perinvfl.runs.train import train
from tests.soak.traces import trace_of_simulation
from tests.stops import StopAt

PAUSE = 2.0  # seconds: the others need the machine too


def stopped_and_resumed(experiment: Experiment, folder: Path, rng: random.Random) -> None:
    rounds = experiment.trials[0].training.rounds
    for stop in sorted(rng.sample(range(1, rounds), 3)):
        forget_prepared()
        try:
            train(experiment, folder, StopAt(stop))
        except KeyboardInterrupt:
            continue
    train(experiment, folder, Progress())


def main(file: Path, folder: Path, seed: str) -> None:
    experiment, rng = read_experiment(file), random.Random(seed)
    train(experiment, folder / "whole", Progress())
    expected = trace_of_simulation(folder / "whole")
    while True:
        stopped_and_resumed(experiment, folder / "again", rng)
        same = trace_of_simulation(folder / "again") == expected
        print("same" if same else f"other bits than a run that was never stopped: {folder / 'again'}", flush=True)
        if not same:
            sys.exit(1)
        shutil.rmtree(folder / "again")
        time.sleep(PAUSE)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
