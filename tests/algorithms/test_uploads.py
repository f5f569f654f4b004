"""What leaves a client, and what does not."""

import dataclasses
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from perinvfl.algorithms.base import Upload
from perinvfl.algorithms.parts import PartlyPersonal, names_of
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.learning.problem import autograd_gradient, functional_gradient
from tests.algorithms.small_runs import (
    ALL,
    EXECUTORS,
    PARTS,
    PERSONAL,
    client_view,
    everyone,
    noise_like,
    personal,
    same_bits,
    simulate,
    with_optimizer,
)


@pytest.mark.parametrize("gradient_of", [autograd_gradient, functional_gradient])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", [name for name in ALL if name not in (*PARTS, "fedala")])
def test_nothing_personal_reaches_the_upload(name: str, optimizer: str, gradient_of: Callable[..., Any]) -> None:
    algorithm = with_optimizer(ALL[name], optimizer, 0.01)
    simulation = simulate(algorithm, rounds=2)
    problem = dataclasses.replace(simulation.problem, gradient_of=gradient_of)
    for i in range(4):
        broadcast, state, batches = client_view(simulation, i)
        other = state._replace(
            personal=tree.map(noise_like, state.personal),
            personal_moments=tree.over(noise_like, state.personal_moments),
            weights=tree.map(noise_like, state.weights),
        )
        upload, _ = algorithm.client(problem, broadcast, state, batches)
        changed, _ = algorithm.client(problem, broadcast, other, batches)
        assert type(upload) is Upload
        assert {n: leaf.shape for n, leaf in upload.update.items()} == {
            n: leaf.shape[1:] for n, leaf in simulation.server.params.items()
        }
        assert upload.risk.shape == ()
        declared = algorithm.start_control(broadcast.params)
        assert {n: leaf.shape for n, leaf in upload.control.items()} == {n: leaf.shape for n, leaf in declared.items()}
        assert same_bits(tree.named_leaves(upload, "upload"), tree.named_leaves(changed, "upload"))
        if name == "alone":
            assert all(not leaf.any() for leaf in tree.leaves(upload))
        else:
            assert upload.update["0.weight"].any() and upload.risk > 0


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", PARTS)
def test_a_personal_part_is_never_sent(name: str, optimizer: str, executor: str) -> None:
    """Neither is it received: the server has no room for it, in its optimizer neither."""
    algorithm = with_optimizer(ALL[name], optimizer, 0.01)
    algorithm = dataclasses.replace(algorithm, server_optimizer=optimizer)  # type: ignore[arg-type]
    simulation = simulate(algorithm, 3, executor)
    model = simulation.model.init(torch.Generator())
    assert isinstance(algorithm, PartlyPersonal)
    own = names_of(simulation.model, algorithm.personal_part, model)
    assert 0 < len(own) < len(model)
    broadcast, state, batches = client_view(simulation, 1)
    upload, state = algorithm.client(simulation.problem, broadcast, state, batches)
    shared = [name for name in model if name not in own]
    assert list(upload.update) == list(broadcast.params) == list(simulation.server.params) == shared
    assert not any(f"'{name}'" in path for name in own for path in tree.named_leaves(simulation.server, "server"))
    assert all(upload.update[name].any() for name in shared)
    assert set(state.personal) == set(model)


def test_an_upload_has_room_for_nothing_else() -> None:
    assert Upload._fields == ("update", "risk", "control")
    assert get_args(Params) == (str, Tensor)
    assert Upload.__annotations__ == {"update": Params, "risk": Tensor, "control": Params}
    senders = {name for name, algorithm in ALL.items() if algorithm.start_control({"w": torch.zeros(2)})}
    assert senders == {"scaffold", "fednova"}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", PERSONAL)
def test_the_server_ends_the_same_whatever_the_personal_models_are(name: str, executor: str) -> None:
    plain, disturbed = (simulate(with_optimizer(ALL[name], "adam", 0.01), 1, executor) for _ in range(2))
    ids = everyone(plain)
    states: Any = disturbed.store.take(ids)
    if isinstance(states, list):
        disturbed.store.put(ids, [[s._replace(personal=tree.map(noise_like, s.personal)) for s in states[0]]])  # type: ignore[arg-type]
    else:
        disturbed.store.put(ids, states._replace(personal=tree.map(noise_like, states.personal)))
    for simulation in (plain, disturbed):
        simulation.round()
        simulation.round()
    assert same_bits(tree.named_leaves(plain.server, "s"), tree.named_leaves(disturbed.server, "s"))
    assert not same_bits(personal(plain), personal(disturbed))
