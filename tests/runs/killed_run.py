"""Kill a run at rounds drawn from a seed, resume it each time, and let it end.

python killed_run.py EXPERIMENT.toml FOLDER SEED: `whole` below the folder is never killed, `broken` is. A process of
its own, because it forks. Prints what the processes say, and last how often one was killed.
"""

import math
import random
import sys
from pathlib import Path

import torch

from perinvfl.runs import group
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.group import forget_prepared
from perinvfl.runs.progress import Exchange, Lines
from perinvfl.runs.train import train
from perinvfl.runs.trial import Trial
from tests.kills import arm, die, survives

KILLS = 6
CHECKPOINT_EVERY = 7  # so that rounds between a checkpoint and a kill are done again
STEPS = 8  # a checkpoint is four to six: lines flushed; a file begun, flushed, renamed; the folder flushed


class KillAt(Lines):
    """Kill this process after a round (step 0), or at its n-th step on disk from then on."""

    def __init__(self, round: int, step: int) -> None:
        super().__init__(lambda line: print(line, flush=True))
        self.kill, self.step, self.armed = round, step, round < 0

    def round(
        self, trials: list[Trial], rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None:
        group.CHECKPOINT_SHARE = math.inf if rounds_done % CHECKPOINT_EVERY else 0.0
        if rounds_done >= self.kill and not self.armed:  # a kill may come after the round of the next one
            self.armed = True
            arm(self.step) if self.step else die()


def main(file: Path, folder: Path, seed: str) -> int:
    experiment = read_experiment(file)
    rng = random.Random(seed)
    train(experiment, folder / "whole", KillAt(-1, 0))
    killed = 0
    for round in sorted(rng.sample(range(2, experiment.trials[0].training.rounds), KILLS)):
        forget_prepared()
        progress = KillAt(round, rng.randrange(STEPS))
        killed += not survives(lambda progress=progress: train(experiment, folder / "broken", progress))  # type: ignore[misc]
    train(experiment, folder / "broken", KillAt(-1, 0))
    return killed


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
