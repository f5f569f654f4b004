"""What the papers say about their methods, on small problems."""

import dataclasses
from typing import Any

import pytest
import torch

from perinvfl.algorithms import APFL, SCAFFOLD, Alone, FedALA, FedAvg, FedNova, FedProx, PerFedAvg
from perinvfl.algorithms.base import Algorithm, erm
from perinvfl.data.federation import Federation
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from tests.algorithms.small_runs import EXECUTORS, client_view, personal, simulate, small_federation


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [
        (FedProx(mu=0.0, local_steps=3), 3),
        (SCAFFOLD(), 1),
        (FedNova(epochs=3.0), 3),
        (FedNova(local_steps=2, epochs=9.0), 2),
    ],
)
def test_these_are_fedavg(algorithm: Algorithm, steps: int, executor: str) -> None:
    """Without a pull; with one local step of all clients; with as many steps at every client."""
    ours, plain = simulate(algorithm, 4, executor), simulate(FedAvg(local_steps=steps), 4, executor)
    for name, leaf in plain.server.params.items():
        torch.testing.assert_close(ours.server.params[name], leaf, rtol=1e-5, atol=1e-6)


def test_apfl_lies_between_the_global_model_and_training_alone() -> None:
    none, whole = (APFL(mixing=share, adaptive=False, local_steps=2) for share in (0.0, 1.0))
    shared, alone = simulate(none, 3), simulate(whole, 3)
    for name, leaf in personal(shared).items():
        wanted = shared.model.strip(shared.server.params)[name][:, None].expand_as(leaf)
        assert torch.equal(leaf, wanted)
    expected = personal(simulate(Alone(local_steps=2), 3))
    for name, leaf in personal(alone).items():
        torch.testing.assert_close(leaf, expected[name], rtol=1e-5, atol=1e-6)


def test_the_shares_of_apfl_and_the_weights_of_fedala_stay_between_0_and_1() -> None:
    for algorithm in (APFL(personal_learning_rate=50.0), FedALA(weight_rate=1e4, learning_rate=0.5)):
        simulation = simulate(algorithm, 4)
        states: Any = simulation.store.take(simulation.everyone)
        kept = torch.cat([leaf.flatten() for state in states[0] for leaf in state.weights.values()])
        assert 0 <= kept.min() < 1 and kept.max() <= 1 and kept.min() < 0.5


def linear(algorithm: Algorithm, federation: Federation, rounds: int) -> Simulation:
    training = Training(executor="loop", device="cpu")
    simulation = Simulation([algorithm], [federation], [0], training, ModelSettings(kind="linear"))
    for _ in range(rounds):
        simulation.round()
    return simulation


def test_per_fedavg_without_the_hessian_points_elsewhere_and_with_it_along_the_exact_gradient() -> None:
    """The exact gradient of f(w − α∇f(w)), by differentiating through the step."""
    simulation = linear(PerFedAvg(), small_federation(), 2)
    broadcast, state, batches = client_view(simulation, 1)
    problem, batch = simulation.problem, batches[0]

    def adapted_risk(w: dict[str, torch.Tensor]) -> torch.Tensor:
        gradient = torch.func.grad(lambda p: problem.value(erm(problem), p, batch)[0])(w)
        return problem.value(erm(problem), {n: w[n] - 0.5 * g for n, g in gradient.items()}, batch)[0]

    exact = torch.func.grad(adapted_risk)(broadcast.params)
    wrong = {}
    for variant in ("first-order", "hessian-free"):
        own = PerFedAvg(personal_learning_rate=0.5, learning_rate=1.0, variant=variant)
        update = own.client(problem, broadcast, state, batches)[0].update
        wrong[variant] = max(float((update[n] + exact[n]).abs().max()) for n in exact)
    assert wrong["hessian-free"] < 0.05 * wrong["first-order"]


def test_scaffold_ends_where_the_mean_gradient_is_zero_and_fedavg_does_not() -> None:
    """Clients whose labels follow different rules: with many local steps FedAvg drifts, SCAFFOLD does not."""
    given = small_federation(task="regression")
    own_rule = given.train.x[..., 0] * torch.arange(4.0)[:, None]
    federation = dataclasses.replace(given, train=given.train._replace(y=given.train.y + own_rule))
    slopes = {}
    for algorithm in (FedAvg(local_steps=20, learning_rate=0.02), SCAFFOLD(local_steps=20, learning_rate=0.02)):
        simulation = linear(algorithm, federation, 300)
        views = [client_view(simulation, i) for i in range(4)]
        problem = simulation.problem
        each = [problem.gradient(erm(problem), sent.params, batches[0])[0]["0.weight"] for sent, _, batches in views]
        slopes[algorithm.title] = float(torch.stack(each).mean(0).norm())
    assert slopes["SCAFFOLD"] < 1e-3 < 10e-3 < slopes["FedAvg"]


def test_a_pull_that_must_diverge_is_refused() -> None:
    with pytest.raises(UserError, match="mu can be at most 20"):
        FedProx(mu=30.0).check("algorithm")
    FedProx(mu=30.0, optimizer="adam").check("algorithm")
