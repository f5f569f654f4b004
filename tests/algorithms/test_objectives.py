"""What is descended: the penalty, group weights, moments, and that clients together do what one place would do.

One promise a test. Many are mistakes that published code has made.
"""

import copy
from typing import Any

import pytest
import torch

from perinvfl.algorithms import IRM, FedAvg, GroupDRO, PerInvFL
from perinvfl.core import tree
from tests import reference
from tests.algorithms.small_runs import EXECUTORS, client_view, everyone, module_of, personal, simulate, with_optimizer


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_penalty_reaches_the_gradient(executor: str, rescale: bool) -> None:
    weight, rate = 50.0, 0.01
    runs = {
        w: simulate(IRM(penalty_weight=w, warmup_rounds=0, learning_rate=rate, rescale=rescale), 0, executor)
        for w in (0.0, weight)
    }
    start = module_of(runs[0.0], tree.map(lambda leaf: leaf[0], runs[0.0].server.params))
    moved = {}
    for w, simulation in runs.items():
        before = simulation.server.params["0.weight"]
        simulation.round()
        moved[w] = simulation.server.params["0.weight"] - before
        # What one plain step on the mean of the clients' objectives, by double backward, comes to.
        model = copy.deepcopy(start)
        shares = reference.samples_of(simulation.federation)
        losses = [reference.irm_loss("binary", model, share, w, paired=False, by_context=False) for share in shares]
        total = sum(losses) / len(losses) / (w if rescale and w > 1 else 1)
        reference.descend(torch.optim.SGD(model.parameters(), lr=rate), total)  # type: ignore[arg-type]
        for name, leaf in reference.parameters_of(model).items():
            got = simulation.model.strip(simulation.server.params)[name][0].double()
            torch.testing.assert_close(got, leaf, rtol=1e-5, atol=1e-6)
    scale = weight if rescale else 1.0
    assert (scale * moved[weight] - moved[0.0]).norm() > 0.5 * moved[0.0].norm()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_penalty_reaches_the_personal_model(executor: str) -> None:
    off, on = (
        personal(
            simulate(
                PerInvFL(penalty_weight=w, warmup_rounds=0, rescale=False, personal_learning_rate=0.01), 2, executor
            )
        )
        for w in (0.0, 50.0)
    )
    assert all((on[name] - off[name]).abs().max() > 1e-3 for name in ("0.weight", "2.weight"))


@pytest.mark.parametrize("algorithm", [GroupDRO(group_step=0.5), PerInvFL(invariance="groupdro", group_step=0.5)])
def test_q_follows_the_risks_of_each_round(algorithm: Any) -> None:
    """Made-up risks that change between rounds; a q fed by the first round's would differ."""
    server = algorithm.init_server({"w": torch.zeros(2)}, 3)
    clients, nothing = torch.arange(3), {"w": torch.zeros(2)}
    rounds = [torch.tensor(r) for r in ([2.0, 0.0, 1.0], [0.0, 3.0, 1.0], [5.0, 5.0, 0.0])]
    exponent = torch.zeros(3)
    for risks in rounds:
        server = algorithm.server(server, nothing, risks, clients)
        exponent = exponent + 0.5 * risks
        torch.testing.assert_close(server.weights, torch.softmax(exponent, 0))
        torch.testing.assert_close(algorithm.broadcast(server, clients).weight, 3 * torch.softmax(exponent, 0))
    stale = torch.softmax(3 * 0.5 * rounds[0], 0)
    assert (server.weights - stale).abs().max() > 0.1


def test_only_the_clients_that_took_part_raise_their_q() -> None:
    algorithm = GroupDRO(group_step=1.0)
    server = algorithm.init_server({"w": torch.zeros(2)}, 4)
    server = algorithm.server(server, {"w": torch.zeros(2)}, torch.tensor([2.0, 1.0]), torch.tensor([3, 1]))
    torch.testing.assert_close(server.weights, torch.softmax(torch.tensor([0.0, 1.0, 0.0, 2.0]), 0))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_risks_are_those_of_the_model_sent_out_and_drive_q(executor: str) -> None:
    simulation = simulate(GroupDRO(group_step=1.0, learning_rate=2.0, local_steps=3), 0, executor)
    q, seen = torch.full((4,), 0.25, dtype=torch.float64), []
    for _ in range(4):
        model = module_of(simulation, tree.map(lambda leaf: leaf[0], simulation.server.params))
        shares = reference.samples_of(simulation.federation)
        truth = torch.stack([reference.risk("binary", model, share).detach() for share in shares])
        risks = simulation.round()[0].double()
        torch.testing.assert_close(risks, truth, rtol=1e-4, atol=1e-5)
        q = q * torch.exp(risks)
        q = q / q.sum()
        seen.append(risks)
        torch.testing.assert_close(simulation.server.weights[0].double(), q, rtol=1e-5, atol=1e-6)
    assert (seen[0] - seen[-1]).abs().max() > 0.05  # else a stale q would pass


def test_local_group_weights_with_a_step_of_zero_stay_even() -> None:
    """Which contexts a mini-batch happens to hold must not move q by itself."""
    simulation = simulate(PerInvFL(invariance="groupdro", group_step=0.0), rounds=6, batch_size=2)
    states: Any = simulation.store.take(everyone(simulation))
    for state, share in zip(states[0], reference.samples_of(simulation.federation), strict=True):
        own = state.weights["q"][share.context.unique()]
        torch.testing.assert_close(own, own[0].expand_as(own))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_moments_are_forgotten_when_the_penalty_switches_on(executor: str) -> None:
    algorithm = with_optimizer(PerInvFL(warmup_rounds=2, penalty_weight=50.0), "adam", 0.01)
    simulation = simulate(algorithm, 0, executor)
    counts = []
    for _ in range(4):
        simulation.round()
        state = client_view(simulation, 0)[1]
        moments = (simulation.server.moments, state.personal_moments, state.moments)
        counts.append([int(m.steps["count"].max()) for m in moments])
    assert counts == [[1, 1, 1], [2, 2, 2], [1, 1, 1], [2, 2, 2]]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_client_that_sits_out_the_switch_forgets_too(executor: str) -> None:
    """Its moments are of the old objective, whenever it comes back."""
    algorithm = with_optimizer(PerInvFL(warmup_rounds=2, penalty_weight=50.0), "adam", 0.01)
    simulation = simulate(algorithm, 0, executor, fraction=0.5)
    present = [simulation.participants(t)[0].tolist() for t in range(12)]
    tried = False
    steps = dict.fromkeys(range(4), 0)  # since the switch
    before: set[int] = set()
    for t in range(12):
        simulation.round()
        for i in present[t]:
            steps[i] = steps[i] + 1 if t >= 2 else 0
            if t < 2:
                before.add(i)
            elif i in before and i not in present[2]:
                tried = True
                count = client_view(simulation, i)[1].moments.steps["count"]
                assert int(count) == steps[i], f"client {i} still remembers the warm-up in round {t}"
    assert tried


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("server", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["fedavg", "irm"])
def test_one_full_batch_step_a_round_is_central_training(name: str, server: Any, executor: str) -> None:
    rounds, warmup, weight, l2 = 6, 2, 10.0, 0.01
    rates = {"learning_rate": 0.3} if server == "sgd" else {"learning_rate": 1.0, "server_learning_rate": 0.01}
    shared: dict[str, Any] = {"l2": l2, "server_optimizer": server, **rates}
    algorithm = FedAvg(**shared) if name == "fedavg" else IRM(penalty_weight=weight, warmup_rounds=warmup, **shared)
    simulation = simulate(algorithm, 0, executor)
    model = module_of(simulation, tree.map(lambda leaf: leaf[0], simulation.server.params))
    shares = reference.samples_of(simulation.federation)

    def optimizer() -> torch.optim.Optimizer:
        if server == "adam":
            return torch.optim.Adam(model.parameters(), lr=0.01)
        return torch.optim.SGD(model.parameters(), lr=0.3)

    central = optimizer()
    for t in range(rounds):
        now = 0.0 if name == "fedavg" else (1.0 if t < warmup else weight)
        if name == "irm" and t == warmup:
            central = optimizer()  # Adam forgets when the penalty switches on
        losses = [reference.irm_loss("binary", model, share, now, paired=False, by_context=False) for share in shares]
        loss = sum(losses) / len(shares) + l2 * reference.norm_squared(model)
        reference.descend(central, loss / max(now, 1.0))
        simulation.round()
    for leaf_name, leaf in reference.parameters_of(model).items():
        got = simulation.model.strip(simulation.server.params)[leaf_name][0].double()
        torch.testing.assert_close(got, leaf, rtol=1e-4, atol=1e-5)
