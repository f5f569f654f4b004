"""`recommended` without its preparation: against plain steps, and what it does when a step goes wrong."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from perinvfl.algorithms.messages import Combined, ServerState
from perinvfl.algorithms.recommended import PERSONAL_STEP, SHARED_PART, STEP, Recommended, size_of
from perinvfl.core.tree import Params
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings, build_model

ROUNDS = 6
MODEL = ModelSettings(hidden=(5, 4))


class Adam:
    """Kingma & Ba's, in double precision."""

    def __init__(self) -> None:
        self.mean: Params = {}
        self.square: Params = {}
        self.count = 0

    def step(self, params: Params, gradient: Params, rate: float) -> Params:
        self.count += 1
        for name, leaf in gradient.items():
            self.mean[name] = 0.9 * self.mean.get(name, 0.0) + 0.1 * leaf
            self.square[name] = 0.999 * self.square.get(name, 0.0) + 0.001 * leaf**2
        mean, square = 1 - 0.9**self.count, 1 - 0.999**self.count
        return {
            name: leaf - rate * (self.mean[name] / mean) / ((self.square[name] / square).sqrt() + 1e-8)
            for name, leaf in params.items()
        }


def gradient_of(
    params: Params, x: Tensor, y: Tensor, l2: float, pull: float = 0.0, anchor: Params | None = None
) -> Params:
    """Of the mean loss, of ‖params‖² and of the pull towards an anchor."""
    model = build_model(MODEL, (6,), 1, "float32")
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    h = x.double()
    for layer in range(3):
        h = h @ leaves[f"{layer}.weight"].T + leaves[f"{layer}.bias"]
        h = h.relu() if layer < 2 else h
    loss = torch.nn.functional.binary_cross_entropy_with_logits(h[:, 0], y.double())
    loss = loss + l2 * sum((leaf**2).sum() for leaf in leaves.values())
    if anchor is not None:
        loss = loss + pull * sum(((leaf - anchor[name]) ** 2).sum() for name, leaf in leaves.items())
    assert model.head
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@pytest.mark.parametrize("samples", [20, 160])
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_steps_are_those_of_a_plain_loop(executor: str, samples: int) -> None:
    federation = random_federation(clients=3, samples=samples)
    training = Training(rounds=ROUNDS, executor=executor)  # type: ignore[arg-type]
    algorithm = Recommended().over(ROUNDS)
    simulation = Simulation([algorithm], [federation], [3], training, MODEL)
    nu = {name: leaf[0].double() for name, leaf in simulation.server.params.items()}
    for _ in range(ROUNDS):
        simulation.round()

    data = [(x[context >= 0], y[context >= 0]) for x, y, context in zip(*federation.train, strict=True)]
    server, own = Adam(), [Adam() for _ in data]
    thetas = [dict(nu) for _ in data]
    after = int(SHARED_PART * ROUNDS)
    for round in range(ROUNDS):
        for i, (x, y) in enumerate(data):
            if round <= after:
                thetas[i], own[i] = dict(nu), Adam()
            way = min(max((round - after) / (ROUNDS - after), 0), 1)
            rate = PERSONAL_STEP * (1 + math.cos(math.pi * way)) / 2 * float(size_of(nu))
            gradient = gradient_of(thetas[i], x, y, min(1 / len(x), 0.01), float(algorithm.beta), nu)  # type: ignore[arg-type]
            thetas[i] = own[i].step(thetas[i], gradient, rate)
        gradients = [gradient_of(nu, x, y, min(1 / len(x), 0.01)) for x, y in data]
        mean = {name: sum(g[name] for g in gradients) / len(data) for name in nu}
        rate = STEP * (1 + math.cos(math.pi * min(round / after, 1))) / 2 * float(size_of(nu))
        nu = server.step(nu, mean, rate)  # type: ignore[arg-type]
    for name, leaf in nu.items():
        torch.testing.assert_close(simulation.server.params[name][0].double(), leaf, rtol=1e-3, atol=1e-4)
    personal = simulation.personal_models(simulation.everyone)
    for i, theta in enumerate(thetas):
        for name, leaf in theta.items():
            torch.testing.assert_close(personal[name][0, i].double(), leaf, rtol=1e-3, atol=1e-4)


def started() -> tuple[Recommended, ServerState]:
    algorithm = Recommended().over(10)
    params = {"weight": torch.arange(1.0, 5.0).view(2, 2), "bias": torch.zeros(2)}
    state = algorithm.init_server(params, 2)
    update = {"weight": -torch.ones(2, 2), "bias": torch.ones(2)}
    for _ in range(2):
        state = algorithm.server(state, update, torch.zeros(2), torch.arange(2))
    return algorithm, state


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_run_that_becomes_infinite_goes_back_and_halves_its_steps(bad: float) -> None:
    algorithm, state = started()
    update = {"weight": torch.full((2, 2), bad), "bias": torch.zeros(2)}
    back = algorithm.server(state, update, torch.zeros(2), torch.arange(2))
    # The last model whose update was finite is the one before the last step.
    assert not torch.equal(back.params["weight"], state.params["weight"])
    assert all(torch.isfinite(leaf).all() for leaf in back.params.values())
    assert float(back.moments.steps["share"]) == 0.5 and float(back.round) == 3
    good = {"weight": -torch.ones(2, 2), "bias": torch.ones(2)}
    on = algorithm.server(back, good, torch.zeros(2), torch.arange(2))
    whole = algorithm.server(
        back._replace(moments=back.moments._replace(steps={**back.moments.steps, "share": torch.tensor(1.0)})),
        good, torch.zeros(2), torch.arange(2),
    )  # fmt: skip
    half, full = (after.params["weight"] - back.params["weight"] for after in (on, whole))
    torch.testing.assert_close(half, full / 2)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_simulation_survives_a_model_that_is_not_finite(executor: str) -> None:
    federation = random_federation(clients=3, samples=20)
    training = Training(rounds=8, executor=executor)  # type: ignore[arg-type]
    simulation = Simulation([Recommended().over(8)], [federation], [3], training, MODEL)
    for _ in range(3):
        simulation.round()
    spoilt = {name: leaf * math.nan for name, leaf in simulation.server.params.items()}
    simulation.server = simulation.server._replace(params=spoilt)
    for _ in range(5):
        simulation.round()
    assert int(simulation.broken[0]) == -1
    assert all(torch.isfinite(leaf).all() for leaf in simulation.server.params.values())
    assert all(torch.isfinite(leaf).all() for leaf in simulation.personal_models(simulation.everyone).values())


def test_a_longer_run_takes_smaller_steps_and_so_as_long_a_way() -> None:
    short, long = Recommended().over(100), Recommended().over(400)
    assert long.server_learning_rate == short.server_learning_rate / 4
    by_rounds = {"cooling": 0, "personal_after": 0, "average_after": 0}
    assert dataclasses.replace(Recommended().over(50), **by_rounds) == dataclasses.replace(short, **by_rounds)  # type: ignore[arg-type]


def test_of_convolutions_nu_becomes_the_mean_of_its_way_when_theta_sets_out() -> None:
    rounds, settled, over = 12, 2, 9
    algorithm, generator = Recommended().over(rounds), torch.Generator().manual_seed(0)
    state = algorithm.init_server({"0.weight": torch.randn(2, 2, 3, 3), "1.weight": torch.randn(1, 2)}, 2)
    way: list[Params] = []
    for round in range(1, rounds + 1):
        update = {name: torch.randn(leaf.shape, generator=generator) for name, leaf in state.params.items()}
        plain = algorithm.server(state, update, torch.zeros(2), torch.arange(2))
        state = algorithm.server_round(state, Combined(update), torch.zeros(2), torch.arange(2))
        way += [plain.params] if settled < round <= over else []
        for name, leaf in state.params.items():
            mean = torch.stack([nu[name] for nu in way]).mean(0) if way else plain.params[name]
            torch.testing.assert_close(state.in_use[name], mean)
            torch.testing.assert_close(leaf, mean if round >= over else plain.params[name])
    assert len(way) == over - settled


def test_without_convolutions_there_is_no_mean() -> None:
    assert started()[1].average == {}


def test_units_that_only_pad_a_layer_do_not_count() -> None:
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert float(size_of({"weight": weight, "bias": torch.ones(2)})) == pytest.approx(math.sqrt(12.5))


def test_executors_agree_on_mini_batches_before_and_after_personal_models_set_out() -> None:
    federation = random_federation(clients=3, samples=20)
    runs = [
        Simulation([Recommended().over(8)], [federation], [3], Training(rounds=8, batch_size=6, executor=kind), MODEL)
        for kind in ("loop", "vmap")
    ]
    for round in range(8):
        for simulation in runs:
            simulation.round()
        if round in (2, 5, 6, 7):
            loop, vmap = (simulation.personal_models(simulation.everyone) for simulation in runs)
            for name, leaf in loop.items():
                torch.testing.assert_close(leaf, vmap[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_no_personal_step_is_computed_before_personal_models_set_out(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, rounds, computed = random_federation(clients=3, samples=20), 8, []
    plain = Recommended.personal_step

    def counted(self: Recommended, *given: Any) -> Any:
        computed.append(simulation.rounds_done)
        return plain(self, *given)

    monkeypatch.setattr(Recommended, "personal_step", counted)
    training = Training(rounds=rounds, executor=executor)  # type: ignore[arg-type]
    simulation = Simulation([Recommended().over(rounds)], [federation], [3], training, MODEL)
    for _ in range(rounds):
        simulation.round()
    assert set(computed) == set(range(int(SHARED_PART * rounds), rounds))


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_client_that_sits_out_begins_at_the_shared_model_when_it_comes_back(executor: str) -> None:
    rounds, after = 12, int(SHARED_PART * 12)
    training = Training(rounds=rounds, fraction=0.25, executor=executor)  # type: ignore[arg-type]
    federation = random_federation(clients=4, samples=20)
    simulation = Simulation([Recommended().over(rounds)], [federation], [3], training, MODEL)
    took_part: dict[int, int] = {}
    for round in range(rounds):
        (who,), before = simulation.participants(round).tolist(), simulation.server.params
        simulation.round()
        for client in who:
            first = took_part.get(client, -1) < after <= round
            took_part[client] = round
            if first:  # one small step away from the model that it was sent
                theta = simulation.personal_models(simulation.everyone)
                apart = max(float((theta[name][0, client] - leaf[0]).abs().max()) for name, leaf in before.items())
                assert 0 < apart <= 1.1 * PERSONAL_STEP * float(size_of({n: leaf[0] for n, leaf in before.items()}))
    late = [client for client, last in took_part.items() if last > after]
    assert late and set(took_part.values()) - set(range(after, rounds))  # both kinds of client were there
    personal = simulation.personal_models(simulation.everyone)
    for client in set(range(4)) - {client for client, last in took_part.items() if last >= after}:
        for name, leaf in simulation.server.params.items():
            assert torch.equal(personal[name][0, client], leaf[0])
