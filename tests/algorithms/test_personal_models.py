"""What a personal model promises: it compounds, lasts, and is pulled by its own client's pull."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from perinvfl.algorithms import IRML2, Ditto, PerInvFL
from perinvfl.core import tree
from tests import reference
from tests.algorithms.small_runs import (
    ALL,
    EXECUTORS,
    PERSONAL,
    client_view,
    module_of,
    personal,
    same_bits,
    simulate,
    with_optimizer,
)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", PERSONAL)
def test_personal_steps_compound(name: str, optimizer: str) -> None:
    """S = 2 is S = 1 twice on the same ν, and neither a restart from ν nor one step."""
    base = dataclasses.replace(with_optimizer(ALL[name], optimizer, 0.05), local_steps=1)
    one, two = (dataclasses.replace(base, personal_steps=s) for s in (1, 2))  # type: ignore[call-arg]
    simulation = simulate(one, rounds=3)
    broadcast, state, batches = client_view(simulation, 2)
    problem = simulation.problem
    once = one.client(problem, broadcast, state, batches)[1]
    twice = one.client(problem, broadcast, once, batches)[1].personal
    compound = two.client(problem, broadcast, state, batches)[1].personal
    restarted = one.client(problem, broadcast, once._replace(personal=broadcast.params), batches)[1].personal
    assert same_bits(compound, twice)
    assert not torch.equal(compound["0.weight"], once.personal["0.weight"])
    assert (compound["0.weight"] - restarted["0.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize("store", ["vmap memory", "loop memory", "vmap disk", "loop disk"])
@pytest.mark.parametrize("name", PERSONAL)
def test_personal_models_outlast_rounds_and_absence(name: str, store: str, tmp_path: Path) -> None:
    executor, at_rest = store.split()
    algorithm = with_optimizer(ALL[name], "adam", 0.01)
    simulation = simulate(algorithm, 0, executor, fraction=0.5, at_rest=at_rest, folder=tmp_path)
    returned = False
    took_part: set[int] = set()
    for t in range(5):
        present = simulation.participants(t)[0].tolist()
        views = {i: client_view(simulation, i) for i in range(4)}
        simulation.round()
        for i, (broadcast, state, batches) in views.items():
            now = client_view(simulation, i)[1]
            if i not in present:
                assert same_bits(tree.named_leaves(now, "state"), tree.named_leaves(state, "state"))
                continue
            assert not torch.equal(now.personal["0.weight"], state.personal["0.weight"])
            expected = algorithm.client_round(simulation.problem, broadcast, state, batches)[1].personal
            for leaf in expected:
                torch.testing.assert_close(now.personal[leaf], expected[leaf], rtol=1e-4, atol=1e-5)
            if i in took_part and i not in simulation.participants(t - 1)[0].tolist():
                # Back after an absence: a θ that began again at ν would end elsewhere.
                returned = True
                forgotten = state._replace(personal=broadcast.params)
                lost = algorithm.client(simulation.problem, broadcast, forgotten, batches)[1].personal
                assert (lost["0.weight"] - expected["0.weight"]).abs().max() > 1e-3
        took_part |= set(present)
    assert returned


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_large_beta_pins_the_personal_model_to_the_global_one(executor: str) -> None:
    beta = 1e4
    simulation = simulate(
        PerInvFL(beta=beta, personal_learning_rate=0.5 / beta, penalty_weight=1.0, learning_rate=0.5), 3, executor
    )
    anchor = simulation.server.params  # ν^t, which θ is pulled to in the round that follows
    simulation.round()
    for name, leaf in personal(simulation).items():
        wanted = simulation.model.strip(anchor)[name][:, None].expand_as(leaf)
        torch.testing.assert_close(leaf, wanted, rtol=0, atol=5e-4)
    assert (simulation.server.params["0.weight"] - anchor["0.weight"]).abs().max() > 5e-3  # ν has not stopped


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("invariance", ["irm", "groupdro"])
def test_without_pull_the_personal_model_is_trained_alone(invariance: Any, executor: str) -> None:
    algorithm = PerInvFL(
        beta=0.0,
        invariance=invariance,
        local_steps=2,
        personal_steps=2,
        penalty_weight=7.0,
        warmup_rounds=0,
        l2=0.01,
        group_step=0.5,
    )
    others = [dataclasses.replace(algorithm, learning_rate=rate) for rate in (0.1, 0.5)]
    runs = [simulate(a, 3, executor) for a in others]
    assert not torch.equal(runs[0].server.params["0.weight"], runs[1].server.params["0.weight"])
    assert same_bits(personal(runs[0]), personal(runs[1]))  # whatever ν does

    start = simulate(algorithm).server.params
    for i, share in enumerate(reference.samples_of(runs[0].federation)):
        model = module_of(runs[0], tree.map(lambda leaf: leaf[0], start))
        optimizer = torch.optim.SGD(model.parameters(), lr=algorithm.personal_learning_rate)
        contexts = share.context.unique().tolist()
        q = [1 / len(contexts)] * len(contexts)
        for _ in range(3 * 2 * 2):
            l2 = algorithm.l2 * reference.norm_squared(model)
            if invariance == "irm":
                loss = reference.irm_loss("binary", model, share, 7.0, paired=False, by_context=True)
                reference.descend(optimizer, (loss + l2) / 7.0)
                continue
            own = [reference.Samples(*(part[share.context == c] for part in share)) for c in contexts]
            risks = [reference.risk("binary", model, part) for part in own]
            q = [w * math.exp(0.5 * r.item()) for w, r in zip(q, risks, strict=True)]
            q = [w / sum(q) for w in q]
            reference.descend(optimizer, sum(w * r for w, r in zip(q, risks, strict=True)) + l2)
        for name, leaf in reference.parameters_of(model).items():
            torch.testing.assert_close(personal(runs[0])[name][0, i].double(), leaf, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("algorithm", [PerInvFL(local_steps=2, penalty_weight=1.0), IRML2(), Ditto()])
def test_a_list_of_pulls_gives_each_client_its_own(algorithm: Any, executor: str) -> None:
    key, values = ("pull" if isinstance(algorithm, Ditto) else "beta"), (0.0, 0.3, 1.0, 2.0)
    listed = personal(simulate(dataclasses.replace(algorithm, **{key: values}), 3, executor))
    for i, value in enumerate(values):
        single = personal(simulate(dataclasses.replace(algorithm, **{key: value}), 3, executor))
        for name in single:
            torch.testing.assert_close(listed[name][:, i], single[name][:, i], rtol=1e-5, atol=1e-6)
    uniform = personal(simulate(dataclasses.replace(algorithm, **{key: 0.3}), 3, executor))
    assert (listed["0.weight"][:, 3] - uniform["0.weight"][:, 3]).abs().max() > 1e-4


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["ftfa", "perinvfl_irm"])
def test_personal_models_come_in_the_order_asked_for(name: str, executor: str) -> None:
    simulation = simulate(ALL[name], 2, executor)
    straight = simulation.personal_models(torch.tensor([[0, 1, 2, 3]]))
    turned = simulation.personal_models(torch.tensor([[3, 1, 0, 2]]))
    some = simulation.personal_models(torch.tensor([[2, 0]]))
    for leaf in straight:
        torch.testing.assert_close(some[leaf], straight[leaf][:, [2, 0]])
        torch.testing.assert_close(turned[leaf], straight[leaf][:, [3, 1, 0, 2]])
