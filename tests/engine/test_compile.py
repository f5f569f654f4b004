"""The compiled gradient gives the same training, and is compiled a few times, not at every call."""

import dataclasses
import shutil
from typing import Any, Literal

import pytest
import torch
from torch._dynamo.utils import counters

from perinvfl.algorithms import (
    APFL,
    SCAFFOLD,
    Algorithm,
    FedALA,
    FedNova,
    FedPer,
    FedProx,
    FedRep,
    LGFedAvg,
    PerFedAvg,
    PerInvFL,
)
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.engine.compiling import IfItCompiles, compiles
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings, build_model
from perinvfl.preparation.program import LEAST_STEPS, MOST_COMPILED, program_of
from perinvfl.preparation.settings import ContextSettings

PERINVFL = PerInvFL(
    learning_rate=0.05, personal_learning_rate=0.05, local_steps=2, warmup_rounds=2, penalty_weight=10.0, beta=0.5
)
COMPILER = any(map(shutil.which, ("g++", "clang++")))


def simulate(compile: bool | Literal["auto"], algorithm: Algorithm = PERINVFL) -> Simulation:
    training = Training(batch_size=8, executor="loop", device="cpu", compile=compile)
    simulation = Simulation([algorithm], [random_federation()], [0], training, ModelSettings(hidden=(5,)))
    for _ in range(5):
        simulation.round()
    return simulation


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_training_is_the_same() -> None:
    if not COMPILER:
        with pytest.raises(UserError, match="needs a C"):
            simulate(True)
        return
    counters.clear()
    compiled, plain = simulate(True), simulate(False)
    assert 0 < counters["stats"]["unique_graphs"] <= 6  # ν and θ, before and after the warm-up
    assert_alike(compiled, plain)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")
@pytest.mark.parametrize(
    "algorithm",
    [FedProx, SCAFFOLD, FedNova, FedPer, FedRep, LGFedAvg, APFL, PerFedAvg, FedALA],
    ids=lambda algorithm: algorithm.title,
)
def test_methods_that_take_steps_of_their_own_are_the_same_compiled(algorithm: type[Algorithm]) -> None:
    assert_alike(*(simulate(compile, algorithm(learning_rate=0.05, local_steps=2)) for compile in (True, False)))


def assert_alike(compiled: Simulation, plain: Simulation) -> None:
    for name, leaf in plain.server.params.items():
        torch.testing.assert_close(compiled.server.params[name], leaf, rtol=1e-4, atol=1e-6)
    for name, leaf in plain.personal_models(plain.everyone).items():
        torch.testing.assert_close(compiled.personal_models(compiled.everyone)[name], leaf, rtol=1e-4, atol=1e-6)


def test_what_cannot_be_compiled_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="goes with training"):
        Simulation([PerInvFL()], [random_federation()], [0], Training(compile=True, executor="vmap"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="needs a C\\+\\+ compiler"):
        simulate(True)


ENOUGH = Training(rounds=LEAST_STEPS // 10, batch_size=MOST_COMPILED, executor="loop", device="cpu", compile="auto")


@pytest.mark.parametrize(
    ("change", "pays"),
    [
        ({}, True),
        ({"rounds": LEAST_STEPS // 10 - 1}, False),
        ({"batch_size": MOST_COMPILED + 1}, False),
        ({"batch_size": 0}, False),
        ({"compile": True, "rounds": 1}, True),
        ({"compile": False}, False),
    ],
)
def test_auto_compiles_where_it_pays(change: dict[str, Any], pays: bool) -> None:
    training = dataclasses.replace(ENOUGH, **change)
    main = program_of(FedProx(local_steps=10), training, ContextSettings()).main
    assert bool(main.training.compile) is pays


def test_auto_is_no_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all clients are one program, or there is no compiler, it changes nothing."""
    small = build_model(ModelSettings(hidden=(5,)), (4,), 1, "float32")
    assert not compiles(ENOUGH, True, small)
    monkeypatch.setenv("PATH", "")
    assert not compiles(ENOUGH, False, small)
    assert not simulate("auto").problem.compiled


@pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_auto_compiles_to_the_same_and_goes_on_where_the_compiler_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = simulate(False)
    assert_alike(simulate("auto"), plain)

    def fails(*given: object) -> None:
        raise RuntimeError("no such header\nand more")

    monkeypatch.setattr("perinvfl.engine.compiling.compiled_descent", lambda: fails)
    with pytest.warns(UserWarning, match=r"could not be compiled \(no such header\): they are taken as they are"):
        left = simulate("auto")
    assert isinstance(left.problem.descent, IfItCompiles)
    assert_alike(left, plain)
