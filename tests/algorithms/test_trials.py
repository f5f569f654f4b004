"""Trials that run together do not disturb each other, and padding disturbs none."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from perinvfl.algorithms import FedAvg, PerInvFL
from perinvfl.algorithms.base import Algorithm
from perinvfl.data.federation import Split
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from tests.algorithms.small_runs import (
    ALL,
    EXECUTORS,
    everyone,
    final,
    personal,
    same_bits,
    simulate,
    small_federation,
    with_optimizer,
)


def whole(simulation: Simulation, risks: Tensor, trial: int) -> bool:
    return all(bool(leaf.isfinite().all()) for leaf in [risks[trial], *final(simulation, trial).values()])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["alone", "fedavg", "groupdro", "irm", "ditto", "perinvfl_irm", "perinvfl_groupdro"])
def test_a_trial_that_breaks_is_flagged_and_disturbs_no_other(name: str, executor: str) -> None:
    good = [dataclasses.replace(ALL[name], learning_rate=rate) for rate in (0.1, 0.2)]
    bad = with_optimizer(ALL[name], "sgd", 1e20)
    mixed = simulate([good[0], bad, good[1]], 0, executor, seeds=[0, 1, 2])
    clean = simulate(good, 0, executor, seeds=[0, 2])
    first_bad = -1
    for t in range(5):
        risks = mixed.round()
        clean.round()
        if first_bad < 0 and not whole(mixed, risks, 1):
            first_bad = t + 1
        assert mixed.broken.tolist() == [-1, first_bad, -1]
    assert first_bad > 0
    assert clean.broken.tolist() == [-1, -1]
    for trial, twin in ((0, 0), (2, 1)):
        got, expected = final(mixed, trial), final(clean, twin)
        if executor == "loop":
            assert same_bits(got, expected)
        else:
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_personal_model_that_breaks_is_flagged_though_the_global_one_is_fine(executor: str) -> None:
    bad = PerInvFL(personal_learning_rate=1e20)
    simulation = simulate([PerInvFL(), bad], 4, executor)
    assert simulation.server.params["0.weight"].isfinite().all()
    assert simulation.broken[0] == -1 and simulation.broken[1] > 0


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"learning_rate": 1}, {"learning_rate": 0.25}),  # a whole number where a number with a point is meant
        ({"learning_rate": 0.25}, {"learning_rate": 1}),
        ({"local_steps": 1}, {"local_steps": 3}),
    ],
)
def test_settings_of_one_trial_are_never_taken_for_another(
    first: dict[str, Any], second: dict[str, Any], executor: str
) -> None:
    """Either each trial runs with its own settings, or the mixture is refused."""
    algorithms: list[Algorithm] = [FedAvg(**first), FedAvg(**second)]
    try:
        together = simulate(algorithms, 2, executor, seeds=[4, 5])
    except (UserError, ValueError):
        return
    for trial, algorithm in enumerate(algorithms):
        single = simulate(algorithm, 2, executor, seeds=[4 + trial])
        torch.testing.assert_close(final(together, trial), final(single, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", ALL)
def test_padding_units_stay_zero(name: str, optimizer: str, executor: str) -> None:
    rates = None if optimizer == "sgd" else 0.01
    algorithm = dataclasses.replace(with_optimizer(ALL[name], optimizer, rates), l2=0.01)
    simulation = simulate(algorithm, 3, executor, batch_size=6)
    whole = [simulation.server.params] if algorithm.has_global else []  # else the server has a part of a model
    for params in (*whole, simulation.personal_models(everyone(simulation))):
        shapes = {n: leaf.shape for n, leaf in simulation.model.strip(params).items()}
        for n, leaf in params.items():
            rest = leaf.clone()
            rest[tuple(slice(0, size) for size in shapes[n])] = 0
            assert not rest.any(), n
        assert params["0.weight"].shape[-2] == 16 and shapes["0.weight"][-2] == 5


def test_padded_samples_change_nothing() -> None:
    plain = small_federation()
    extra = 7

    def lengthen(part: Tensor, fill: float) -> Tensor:
        return torch.cat([part, torch.full((4, extra, *part.shape[2:]), fill, dtype=part.dtype)], 1)

    longer = Split(lengthen(plain.train.x, 50.0), lengthen(plain.train.y, 1), lengthen(plain.train.context, -1))
    padded = dataclasses.replace(plain, train=longer)
    for name, algorithm in ALL.items():
        a, b = (simulate(algorithm, 3, federation=federation) for federation in (plain, padded))
        torch.testing.assert_close(final(a, 0), final(b, 0), rtol=1e-4, atol=1e-5, msg=name)
        torch.testing.assert_close(personal(a), personal(b), rtol=1e-4, atol=1e-5, msg=name)
