"""Kill a site at every step of every round that touches its disk, ask it again, and see that nothing is lost.

python killed_site.py FOLDER prints how often a process was killed. A process of its own, because it forks: the child
does one round and is killed at its n-th step; the parent plays the server.
"""

import sys
from pathlib import Path

import torch

from perinvfl.flower.site import Site
from tests.flower.deployed import assert_equal
from tests.flower.site_rounds import assignment, kept, model
from tests.kills import survives

ROUNDS = 3


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
                    ended = survives(lambda folder=folder, round=round: ask(folder, round), at)  # type: ignore[misc]
                    kills += not ended
                if round != victim or not ended:
                    ask(folder, round)  # asked again, as the server does
            assert_equal(kept(Site(folder), ROUNDS - 1), expected)
    return kills


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(main(Path(sys.argv[1])))
