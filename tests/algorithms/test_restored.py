"""Going on from a saved state, with states at rest in memory and on disk."""

from pathlib import Path
from typing import Any

import pytest
import torch

from perinvfl.core import tree
from perinvfl.engine.evaluation import predict_tests, training_scores
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from tests.algorithms.small_runs import ALL, EXECUTORS, STORES, final, personal, same_bits, simulate, with_optimizer


@pytest.mark.parametrize("fraction", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    "name",
    [
        "perinvfl_irm",
        "scaffold",
        "fedala",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in ("fedavg", "alone", "groupdro", "ditto", "perinvfl_groupdro", "fedyogi", "fedrep", "apfl")
        ),
    ],
)
def test_a_restored_simulation_goes_on_with_the_same_bits(
    name: str, store: str, fraction: float, tmp_path: Path
) -> None:
    """Saved after round 3; the first process lives on for a round (and dies), the second one does rounds 4 to 6."""
    executor, at_rest = store.split()
    algorithms = [with_optimizer(ALL[name], "adam", rate) for rate in (0.01, 0.005)]

    def fresh(folder: str) -> Simulation:
        return simulate(
            algorithms, 0, executor, batch_size=6, fraction=fraction, at_rest=at_rest, folder=tmp_path / folder
        )

    straight = fresh("straight")
    for _ in range(6):
        straight.round()

    begun = fresh("cut")
    begun.round()
    begun.state()
    begun.store.settle()  # as after a first checkpoint
    begun.round()
    begun.round()
    saved = {key: leaf.clone() for key, leaf in begun.state().items()}
    begun.store.settle()
    begun.round()
    resumed = fresh("cut")
    resumed.restore(saved)
    assert resumed.rounds_done == 3
    for _ in range(3):
        resumed.round()
    for trial in range(2):
        assert same_bits(final(resumed, trial), final(straight, trial))
    assert same_bits(personal(resumed), personal(straight))
    assert torch.equal(resumed.broken, straight.broken)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_crash_before_the_rows_are_written_loses_nothing(executor: str, tmp_path: Path) -> None:
    def fresh(folder: str) -> Simulation:
        return simulate(
            ALL["perinvfl_irm"], 0, executor, fraction=0.5, at_rest="disk", folder=tmp_path / folder, batch_size=6
        )

    straight, begun = fresh("straight"), fresh("cut")
    for _ in range(6):
        straight.round()
    for _ in range(2):
        begun.round()
    begun.store.settle()
    begun.round()
    saved = {key: leaf.clone() for key, leaf in begun.state().items()}  # and no settle() any more
    resumed = fresh("cut")
    resumed.restore(saved)
    for _ in range(3):
        resumed.round()
    assert same_bits(final(resumed, 0), final(straight, 0))


@pytest.mark.parametrize("store", STORES)
def test_a_saved_state_does_not_change_afterwards(store: str, tmp_path: Path) -> None:
    executor, at_rest = store.split()
    simulation = simulate(ALL["perinvfl_irm"], 2, executor, at_rest=at_rest, folder=tmp_path)
    saved = simulation.state()
    kept = {key: leaf.clone() for key, leaf in saved.items()}
    simulation.round()
    assert same_bits(saved, kept)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_restore_takes_a_simulation_back(executor: str, rounds: int, fraction: float) -> None:
    simulation = simulate(ALL["perinvfl_irm"], rounds, executor, fraction=fraction)
    saved = {key: leaf.clone() for key, leaf in simulation.state().items()}
    ends = []
    for _ in range(2):
        for _ in range(2):
            simulation.round()
        ends.append({key: leaf.clone() for key, leaf in final(simulation, 0).items()})
        simulation.restore(saved)
    assert same_bits(*ends)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["fedavg", "perinvfl_irm", "perinvfl_groupdro", "pfedme"])
def test_states_at_rest_on_disk_change_nothing(name: str, executor: str, tmp_path: Path) -> None:
    algorithm = with_optimizer(ALL[name], "adam", 0.01)
    memory = simulate(algorithm, 0, executor, fraction=0.5, batch_size=6)
    disk = simulate(algorithm, 0, executor, fraction=0.5, batch_size=6, at_rest="disk", folder=tmp_path / "rows")
    for _ in range(5):
        assert torch.equal(memory.round(), disk.round())
        disk.store.settle()  # every row comes back from its file
    assert same_bits(final(memory, 0), final(disk, 0))
    assert same_bits(personal(memory), personal(disk))
    if name == "perinvfl_irm":
        assert list((tmp_path / "rows").glob("*.rows"))


def test_disk_without_a_folder_is_refused() -> None:
    with pytest.raises(UserError, match="folder"):
        simulate(ALL["perinvfl_irm"], at_rest="disk")


def test_a_sample_of_the_clients_is_scored_as_among_all() -> None:
    for executor in EXECUTORS:
        given: dict[str, Any] = {"fraction": 0.5, "batch_size": 6}
        everyone, some = (simulate(ALL["perinvfl_irm"], 3, executor, evaluate_clients=n, **given) for n in (0, 2))
        ids = some.tested_clients[0]
        assert len(ids) == 2 < everyone.clients and some.samples_clients and not everyone.samples_clients
        for kind, cases in everyone.evaluate().items():
            for case, row in cases.items():
                torch.testing.assert_close(some.evaluate()[kind][case], row[:, ids], equal_nan=True)
        torch.testing.assert_close(training_scores(some), training_scores(everyone)[:, ids])
        for kind, cases in predict_tests(everyone).items():
            for case, outputs in cases.items():
                torch.testing.assert_close(predict_tests(some)[kind][case], outputs[:, ids])


def test_checkpoints_from_before_hold_the_places_themselves(tmp_path: Path) -> None:
    """A checkpoint holds one bit for each client that sits out; older ones a list of those that had taken part."""
    given: dict[str, Any] = {"fraction": 0.5, "at_rest": "disk", "batch_size": 6, "folder": tmp_path}
    simulation = simulate(ALL["perinvfl_irm"], 2, "loop", **given)
    simulation.store.settle()
    simulation.round()
    saved = simulation.state()
    settled = simulation.store.settled.clone()  # type: ignore[union-attr]
    assert settled.any() and saved["settled"].dtype == torch.uint8 and len(saved["settled"]) == -(-len(settled) // 8)
    for key in ("new", "old"):
        again = simulate(ALL["perinvfl_irm"], 0, "loop", **given)
        again.restore(saved if key == "new" else {**saved, "settled": settled.nonzero().flatten()})
        mine, theirs = (tree.leaves(run.states_of(run.everyone)) for run in (again, simulation))
        assert mine and all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)), key
