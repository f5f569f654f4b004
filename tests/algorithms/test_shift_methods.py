"""FedSR, FedIIR, FedDG-GA and the mean of ν over rounds: resumed, compiled, at their borders, and what they send."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from perinvfl.algorithms import Algorithm, FedAvg, FedDGGA, FedIIR, FedSR, PerInvFL
from perinvfl.core import tree
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings, module
from tests.algorithms.small_runs import (
    EXECUTORS,
    STORES,
    client_view,
    final,
    same_bits,
    simulate,
    small_federation,
    with_optimizer,
)

METHODS: dict[str, Algorithm] = {
    "fedsr": FedSR(local_steps=2, cmi=0.1),
    "fediir": FedIIR(local_steps=2),
    "feddg_ga": FedDGGA(local_steps=2, total_rounds=6),
    "averaged": PerInvFL(local_steps=2, warmup_rounds=2, average_after=2),
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", METHODS)
def test_a_restored_simulation_goes_on_with_the_same_bits(name: str, store: str, tmp_path: Path) -> None:
    executor, at_rest = store.split()
    algorithms = [with_optimizer(METHODS[name], "adam", rate) for rate in (0.01, 0.005)]

    def fresh(folder: str) -> Simulation:
        return simulate(algorithms, 0, executor, batch_size=6, fraction=0.5, at_rest=at_rest, folder=tmp_path / folder)

    straight = fresh("straight")
    for _ in range(6):
        straight.round()
    first = fresh("parted")
    for _ in range(3):
        first.round()
    saved = first.state()
    first.store.settle()
    second = fresh("parted")
    second.restore(saved)
    for _ in range(3):
        second.round()
    for trial in range(2):
        assert same_bits(final(straight, trial), final(second, trial))


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="no C++ compiler")
@pytest.mark.parametrize("name", ["fedsr", "fediir", "feddg_ga"])
def test_compiled_training_is_the_same(name: str) -> None:
    ended = []
    for compile in (True, False):
        training = Training(batch_size=8, executor="loop", device="cpu", compile=compile)
        simulation = Simulation([METHODS[name]], [random_federation()], [0], training, ModelSettings(hidden=(5,)))
        for _ in range(3):
            simulation.round()
        ended.append(simulation.server)
    for leaf, other in zip(*map(tree.leaves, ended), strict=True):
        torch.testing.assert_close(leaf, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    "algorithm", [FedSR(l2r=0.0, cmi=0.0), FedIIR(penalty_weight=0.0), FedDGGA(adjustment=0.0, total_rounds=5)]
)
def test_without_its_own_term_each_is_fedavg(algorithm: Algorithm, executor: str) -> None:
    steps = {"local_steps": 3, "learning_rate": 0.2}
    own = simulate(dataclasses.replace(algorithm, **steps), 4, executor)  # type: ignore[arg-type]
    plain = simulate(FedAvg(local_steps=3, learning_rate=0.2), 4, executor)
    for name, leaf in plain.server.params.items():
        torch.testing.assert_close(own.server.params[name], leaf, rtol=1e-5, atol=1e-7)


def test_adjustment_raises_the_weight_of_the_client_that_loses_most() -> None:
    simulation = simulate(FedDGGA(local_steps=5, learning_rate=0.3, total_rounds=10))
    assert simulation.round().abs().max() == 0  # nobody has a model of its own yet
    assert torch.allclose(simulation.server.weights, torch.full((1, 4), 0.25))
    gaps = simulation.round()[0]
    weights = simulation.server.weights[0]
    assert int(weights.argmax()) == int(gaps.argmax()) and float(weights.sum()) == pytest.approx(1)
    raised = 0.25 + 0.2 * 0.9  # d (1 − 1/10), if its gap is the one farthest from the mean
    assert float(weights.max()) <= raised + 1e-6 and float(weights.min()) >= 0


def test_what_travels_beside_the_model() -> None:
    shapes = {}
    for name in ("fedsr", "fediir", "feddg_ga"):
        simulation = simulate(METHODS[name], 2)
        upload, _ = METHODS[name].client(simulation.problem, *client_view(simulation, 1))
        shapes[name] = {key: tuple(leaf.shape) for key, leaf in upload.control.items()}
        assert upload.risk.shape == ()
    # Of a binary label and 16 features (4, made up to 16): sums by class; the gradient of weights and bias.
    assert shapes == {"fedsr": {"features": (2, 16), "share": (2,)}, "fediir": {"gradient": (1, 17)}, "feddg_ga": {}}


def test_class_means_are_those_of_all_clients() -> None:
    """With full batches and shares by samples, m_y is the mean over all samples of the class."""
    federation = small_federation(task="multiclass", outputs=3)
    simulation = simulate(FedSR(), federation=federation, weights="samples")
    start = {name: leaf[0].clone() for name, leaf in simulation.server.params.items()}
    simulation.round()
    real = federation.train.context >= 0
    z, y = simulation.model.features(start, federation.train.x[real]), federation.train.y[real]
    for label in range(3):
        torch.testing.assert_close(simulation.server.control["features"][0, label], z[y == label].mean(0))


@pytest.mark.parametrize("name", ["fedsr", "fediir"])
def test_a_model_must_say_which_layer_is_its_last(name: str) -> None:
    def build() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    model = module(build, (6,), 1, "float32")
    simulation = Simulation([METHODS[name]], [random_federation()], [0], Training(executor="loop"), model)
    with pytest.raises(UserError, match="looks at the last layer of the model, and this model does not say which"):
        simulation.round()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_mean_over_rounds_predicts_and_the_last_model_trains_on(executor: str) -> None:
    averaged, plain = (simulate(FedAvg(average_after=after), 0, executor) for after in (2, 0))
    past = []
    for _ in range(5):
        averaged.round()
        plain.round()
        past.append(plain.server.params["0.weight"].clone())
        assert torch.equal(averaged.server.params["0.weight"], past[-1])
        expected = torch.stack(past[2:]).mean(0) if len(past) > 2 else past[-1]
        for kind in ("personal", "global"):
            used = averaged.models_of(kind, averaged.everyone)["0.weight"]
            torch.testing.assert_close(used[:, 0], expected)
