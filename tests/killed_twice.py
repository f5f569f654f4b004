"""Kill a run in the middle of a write, and what resumes it in the middle of its first writes; then let it end.

python killed_twice.py simulator|server FOLDER: prints how often a process was killed twice. A process of its own,
because it forks. Server and sites are one process here, so that a kill hits both.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from perinvfl.flower import rounds
from perinvfl.flower.client_app import open_site
from perinvfl.flower.settings import DeploymentSettings
from perinvfl.runs import group
from perinvfl.runs.experiment import Experiment
from perinvfl.runs.group import forget_prepared
from perinvfl.runs.progress import Progress
from perinvfl.runs.train import train
from tests.flower.deployed import sites, trial_of
from tests.flower.inprocess import InProcess
from tests.kills import survives
from tests.soak.traces import trace_of_deployment, trace_of_simulation

FIRST = {"simulator": range(9, 30, 4), "server": range(20, 75, 13)}  # steps on disk in the middle of a run
SECOND = 7  # the first steps of what resumes it


def simulate(folder: Path) -> None:
    group.CHECKPOINT_SHARE = 0.0  # a checkpoint after every round
    forget_prepared()
    train(Experiment("twice", (trial_of("perinvfl", rounds=4),)), folder / "runs", Progress())


def serve(folder: Path) -> None:
    """With noise, so that the budget is written too. A run begun again would draw other noise: its name decides it."""
    open_site.cache_clear()
    trial, settings = trial_of("perinvfl", rounds=4), DeploymentSettings(noise_multiplier=1.0, poll=0.01)
    for client in range(4):
        (folder / f"site-{client}").mkdir(parents=True, exist_ok=True)
        if not (folder / f"site-{client}" / "noise.key").exists():
            (folder / f"site-{client}" / "noise.key").write_bytes(bytes(32))
    rounds.secrets.token_hex = lambda size=None: "name"  # type: ignore[assignment]
    run = rounds.Rounds(trial, settings, sites(trial), InProcess(folder, 4), folder / "runs", Progress())
    run.run(resume=True)


def trace_of_server(folder: Path) -> str:
    (run,) = (path.parent for path in (folder / "runs").glob("*/server.pt"))
    left = [path.name for path in folder.rglob("*") if path.suffix in (".new", ".tmp")]
    assert not left, left
    return trace_of_deployment(run, [folder / f"site-{client}" for client in range(4)])


def main(kind: str, root: Path) -> int:
    work: Callable[[Path], None] = simulate if kind == "simulator" else serve
    trace: Callable[[Path], str] = trace_of_simulation if kind == "simulator" else trace_of_server
    assert survives(lambda: work(root / "whole"))
    expected, twice = trace(root / "whole"), 0
    for first in FIRST[kind]:
        killed = root / f"killed-{first}"
        assert not survives(lambda killed=killed: work(killed), first), "it was over before it was killed"  # type: ignore[misc]
        for second in range(1, SECOND + 1, 2):
            again = root / f"killed-{first}-{second}"
            shutil.copytree(killed, again)
            twice += not survives(lambda again=again: work(again), second)  # type: ignore[misc]
            assert survives(lambda again=again: work(again))  # type: ignore[misc]
            assert trace(again) == expected, (first, second)
            shutil.rmtree(again)
    return twice


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(main(sys.argv[1], Path(sys.argv[2])))
