"""The same seed gives the same bits, whatever else runs."""

import dataclasses

import pytest
import torch

from perinvfl.algorithms import FedAvg
from tests.algorithms.small_runs import ALL, EXECUTORS, final, personal, same_bits, simulate, with_optimizer


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ALL)
def test_the_same_seed_gives_the_same_bits_and_another_seed_another_run(name: str, executor: str) -> None:
    algorithm = with_optimizer(ALL[name], "adam", 0.01)
    first, again = (simulate([algorithm] * 2, 3, executor, seeds=[5, 6], batch_size=6, fraction=0.5) for _ in range(2))
    for trial in range(2):
        assert same_bits(final(first, trial), final(again, trial))
    assert same_bits(personal(first), personal(again))
    one, other = final(first, 0), final(first, 1)
    fresh = simulate([algorithm] * 2, 0, executor, seeds=[5, 6])
    leaf = next(leaf for leaf in fresh.server.params if leaf.endswith("weight"))
    assert not torch.equal(one[f"server.params['{leaf}']"], other[f"server.params['{leaf}']"])
    assert not torch.equal(*fresh.server.params[leaf])


def test_batches_and_participants_follow_the_seed_client_and_round() -> None:
    simulation = simulate([FedAvg()] * 3, seeds=[5, 6, 5], batch_size=6, fraction=0.5)
    ids = torch.tensor([[0, 1], [0, 1], [0, 1]])
    places = simulation.sample_indices(0, ids, 20, "batches")
    later = simulation.sample_indices(1, ids, 20, "batches")
    assert places is not None and later is not None
    assert torch.equal(places[0], places[2])
    assert not torch.equal(places[0], places[1])  # seeds
    assert not torch.equal(places[0, 0], places[0, 1])  # clients
    assert not torch.equal(places[0], later[0])  # rounds
    alone = simulation.sample_indices(0, torch.tensor([[1], [1], [1]]), 20, "batches")
    assert alone is not None and torch.equal(alone[:, 0], places[:, 1])  # not on who else takes part
    sizes = simulation.federation.sizes
    assert places[:, 0].max() < sizes[0] and places[:, 1].max() == sizes[1] - 1
    who = torch.stack([simulation.participants(t) for t in range(30)])  # [rounds, T, 2]
    assert torch.equal(who[:, 0], who[:, 2]) and not torch.equal(who[:, 0], who[:, 1])
    assert sorted(who[:, 0].unique().tolist()) == [0, 1, 2, 3]
    assert (who[..., 0] < who[..., 1]).all()


def test_trials_with_the_same_seed_and_settings_are_the_same_whatever_runs_beside_them() -> None:
    pair = simulate([FedAvg(learning_rate=0.2), FedAvg(learning_rate=0.5)], 3, seeds=[7, 8], batch_size=6)
    single = simulate(FedAvg(learning_rate=0.5), 3, seeds=[8], batch_size=6)
    assert same_bits(final(pair, 1), final(single, 0))


def test_more_threads_change_no_bit_and_are_given_back() -> None:
    algorithms = [ALL["perinvfl_irm"], dataclasses.replace(ALL["perinvfl_irm"], learning_rate=0.3)]
    one = simulate(algorithms, 2)
    torch.set_num_threads(2)
    two = simulate(algorithms, 2)
    assert torch.get_num_threads() == 2
    for trial in range(2):
        assert same_bits(final(one, trial), final(two, trial))
