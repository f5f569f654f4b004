"""A deployed run is the simulator's: ν, q and every θ_i, for every algorithm, through the real codec."""

from pathlib import Path

import pytest
import torch
from flower.inprocess import InProcess

from perinvfl.algorithms import ALGORITHMS
from perinvfl.core import tree
from perinvfl.engine.simulation import Simulation
from perinvfl.flower.rounds import Rounds
from perinvfl.flower.settings import FederationSettings
from perinvfl.flower.site import StateStore, make_worker
from perinvfl.flower.watch import Watch
from perinvfl.results.table import make_table
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.records import find_runs, read_run
from perinvfl.runs.trial import Trial

SETTINGS = FederationSettings(patience=1.0, round_timeout=1.0)


def trial_of(name: str, rounds: int = 5, clients: int = 4, **training: object) -> Trial:
    own: dict[str, object] = {"name": name, "local_steps": 2, "learning_rate": 0.05}
    if name in ("perinvfl", "irm_l2"):
        own |= {"beta": [0.1, 0.2, 0.3, 0.4][:clients], "personal_optimizer": "adam", "warmup_rounds": 2}
    if name == "groupdro":
        own |= {"group_step": 0.5}
    if name == "fedavg":
        own |= {"server_optimizer": "adam", "server_learning_rate": 0.01, "optimizer": "adam"}
    table = {
        "data": {"benchmark": "random", "clients": clients, "samples": 20},
        "model": {"hidden": [5]},
        "training": {"rounds": rounds, "batch_size": 8, "evaluate_every": 2, "executor": "loop"} | training,
        "algorithm": own,
    }
    return build_experiment(table).trials[0]


def simulate(trial: Trial) -> Simulation:
    simulation = Simulation([trial.algorithm], [trial.federation()], [trial.seed], trial.training, trial.model)
    for _ in range(trial.training.rounds):
        simulation.round()
    return simulation


def sites(trial: Trial) -> list[str]:
    return [f"site-{client}" for client in range(trial.data.clients)]


def deploy(
    trial: Trial, folder: Path, settings: FederationSettings = SETTINGS, post: InProcess | None = None
) -> Rounds:
    post = post or InProcess(folder, trial.data.clients)
    rounds = Rounds(trial, settings, sites(trial), post, folder / "runs", Watch())
    rounds.run(resume=False)
    return rounds


def committed(rounds: Rounds, folder: Path, client: int) -> tuple[int, object]:
    """The state on a site's disk."""
    assignment = rounds._assignment(rounds.begun.run, client, 0, 1.0, rounds.begun.contexts)
    worker = make_worker(None, assignment.trial)
    vault = StateStore(folder / f"site-{client}" / "state")
    return vault._read(vault.place(rounds.begun.run) / "committed.pt", worker.initial)


def assert_same(trial: Trial, rounds: Rounds, folder: Path, simulation: Simulation, tolerance: float = 1e-6) -> None:
    close = {"rtol": tolerance, "atol": tolerance}
    for left, right in zip(tree.leaves(rounds.server), tree.leaves(simulation.server), strict=True):
        torch.testing.assert_close(left, right[0], **close)
    states = simulation.store.take(simulation.everyone)[0]
    for client in range(trial.data.clients):
        round, state = committed(rounds, folder, client)
        assert round == trial.training.rounds - 1
        for left, right in zip(tree.leaves(state), tree.leaves(states[client]), strict=True):
            torch.testing.assert_close(left, right, **close)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_the_simulators(name: str, tmp_path: Path) -> None:
    trial = trial_of(name)
    rounds, simulation = deploy(trial, tmp_path), simulate(trial)
    assert_same(trial, rounds, tmp_path, simulation)
    run = read_run(rounds.folder)
    assert run is not None and run.finished
    assert [event["round"] for event in run.evaluations] == [2, 4, 5]
    for kind, cases in simulation.evaluate().items():
        for case, row in cases.items():
            assert run.evaluations[-1][kind][case] == pytest.approx(row[0].tolist(), abs=2e-6)
    assert run.start["notes"]["constant"] == simulation.federation.notes["constant"]
    make_table(find_runs(tmp_path / "runs"))


@pytest.mark.parametrize(
    "training",
    [{"batch_size": 0}, {"weights": "samples"}, {"fraction": 0.5}, {"precision": "bfloat16"}],
    ids=lambda training: next(iter(training)),
)
def test_ways_of_training_are_the_simulators(training: dict[str, object], tmp_path: Path) -> None:
    trial = trial_of("perinvfl", **training)
    if "fraction" in training:
        rounds, simulation = deploy(trial, tmp_path), simulate(trial)
        for left, right in zip(tree.leaves(rounds.server), tree.leaves(simulation.server), strict=True):
            torch.testing.assert_close(left, right[0])
    else:
        assert_same(trial, deploy(trial, tmp_path), tmp_path, simulate(trial))
