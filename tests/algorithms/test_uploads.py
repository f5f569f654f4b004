"""What leaves a client, and what does not."""

import dataclasses
from collections.abc import Callable
from typing import Any, get_args

import pytest
from torch import Tensor

from perinvfl.algorithms.base import Upload
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.learning.problem import autograd_gradient, functional_gradient
from tests.algorithms.small_runs import (
    ALL,
    EXECUTORS,
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
@pytest.mark.parametrize("name", ALL)
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
        assert same_bits(tree.named_leaves(upload, "upload"), tree.named_leaves(changed, "upload"))
        if name == "alone":
            assert all(not leaf.any() for leaf in tree.leaves(upload))
        else:
            assert upload.update["0.weight"].any() and upload.risk > 0


def test_an_upload_has_room_for_nothing_else() -> None:
    assert Upload._fields == ("update", "risk")
    assert get_args(Params) == (str, Tensor) and Upload.__annotations__ == {"update": Params, "risk": Tensor}


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
