"""Invariance penalties: each against loops over samples and autograd, value and gradient, padding included."""

import dataclasses
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from perinvfl.algorithms import IRM, PerInvFL, VREx
from perinvfl.core import tree
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.data.federation import Task
from perinvfl.engine.simulation import Simulation
from perinvfl.learning import risks
from perinvfl.learning.penalties import PENALTIES, Penalty, PenaltyInputs
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from tests import reference

TASKS: tuple[Task, ...] = ("binary", "multiclass", "regression")
MODEL = ModelSettings(hidden=(5, 4))


@dataclasses.dataclass
class Layer:
    """A last layer and what it is shown."""

    features: Tensor  # [B, D]
    weight: Tensor  # [C, D]
    bias: Tensor  # [C]
    y: Tensor
    context: Tensor
    contexts: int

    @property
    def logits(self) -> Tensor:
        return self.features @ self.weight.t() + self.bias

    @property
    def leaves(self) -> list[Tensor]:
        return [self.features, self.weight, self.bias]


def draw(task: Task, size: int, contexts: int, seed: int) -> Layer:
    source = torch.Generator().manual_seed(seed)
    outputs = 3 if task == "multiclass" else 1

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64).requires_grad_()

    if task == "regression":
        y = torch.randn(size, generator=source, dtype=torch.float64)
    else:
        y = torch.randint(3 if task == "multiclass" else 2, (size,), generator=source)
    context = torch.randint(-1, contexts, (size,), generator=source)
    context[0] = 0  # one sample at least is real
    labels = y if task == "multiclass" else y.double()
    return Layer(leaf(size, 4), leaf(outputs, 4), leaf(outputs), labels, context, contexts)


def present(layer: Layer) -> list[Tensor]:
    """Which samples are of each context that has any."""
    marks = [layer.context == number for number in range(layer.contexts)]
    return [own for own in marks if own.any()]


def spread(values: list[Tensor]) -> Tensor:
    """Mean squared distance to the mean."""
    mean = sum(values) / len(values)
    return sum(((value - mean) ** 2).sum() for value in values) / len(values)  # type: ignore[return-value]


def slow_irm(task: Task, layer: Layer) -> Tensor:
    return sum(reference.irm_penalty(task, layer.logits, layer.y, own, paired=False) for own in present(layer))  # type: ignore[return-value]


def slow_v_rex(task: Task, layer: Layer) -> Tensor:
    return spread([reference.mean_loss(task, layer.logits[own], layer.y[own]) for own in present(layer)])


def slow_fishr(task: Task, layer: Layer) -> Tensor:
    """The variance, in each context, of the gradients of single samples in the last layer: one backward a sample."""
    rows = []
    for i in range(len(layer.y)):
        loss = reference.mean_loss(task, layer.logits[i : i + 1], layer.y[i : i + 1])
        parts = torch.autograd.grad(loss, [layer.weight, layer.bias], create_graph=True)
        rows.append(torch.cat([part.flatten() for part in parts]))
    variances = []
    for own in present(layer):
        kept = [row for row, mine in zip(rows, own.tolist(), strict=True) if mine]
        mean = sum(kept) / len(kept)
        variances.append(sum((row - mean) ** 2 for row in kept) / len(kept))
    return spread(variances)  # type: ignore[arg-type]


def slow_decoupling(task: Task, layer: Layer) -> Tensor:
    norms = layer.logits.square().sum(1)
    return sum(norms[own].sum() / own.sum() for own in present(layer))  # type: ignore[return-value]


def slow_ib_irm(task: Task, layer: Layer) -> Tensor:
    real = layer.features[layer.context >= 0]
    return slow_irm(task, layer) + spread(list(real)) / real.shape[1]


SLOW = {
    "irm": slow_irm,
    "v-rex": slow_v_rex,
    "fishr": slow_fishr,
    "decoupling": slow_decoupling,
    "ib-irm": slow_ib_irm,
}


def seen(task: Task, layer: Layer, member: Tensor | None) -> PenaltyInputs:
    return PenaltyInputs(task, layer.features, layer.logits, layer.y, member, paired=False)


def slopes(value: Tensor, layer: Layer) -> tuple[Tensor, ...]:
    nothing = 0 * sum(leaf.sum() for leaf in layer.leaves)  # so that a penalty of 0 has a gradient, too
    return torch.autograd.grad(value + nothing, layer.leaves)


def test_every_penalty_has_a_slow_one() -> None:
    assert SLOW.keys() == PENALTIES.keys()


@pytest.mark.parametrize("name", SLOW)
@given(task=st.sampled_from(TASKS), size=st.integers(2, 9), contexts=st.integers(1, 3), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_value_and_gradient_equal_the_slow_penalty(
    name: Penalty, task: Task, size: int, contexts: int, seed: int
) -> None:
    layer = draw(task, size, contexts, seed)
    member = risks.membership(layer.context, contexts).double()
    expected, got = SLOW[name](task, layer), PENALTIES[name](seen(task, layer, member))
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-6)
    for own, slow in zip(slopes(got, layer), slopes(expected, layer), strict=True):
        torch.testing.assert_close(own, slow, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", SLOW)
def test_no_membership_is_one_context_of_all(name: Penalty, task: Task) -> None:
    layer = draw(task, 8, 1, seed=5)
    layer.context = torch.zeros(8, dtype=torch.int64)
    got = PENALTIES[name](seen(task, layer, None))
    torch.testing.assert_close(got.double(), SLOW[name](task, layer), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["v-rex", "fishr"])
def test_a_context_that_is_absent_is_not_one_that_differs(name: Penalty) -> None:
    """A client with fewer contexts than another: with one, there is nothing to vary between."""
    layer = draw("binary", 8, 1, seed=1)
    layer.context = torch.zeros(8, dtype=torch.int64)
    for contexts in (1, 2, 4):
        member = risks.membership(layer.context, contexts).double()
        assert PENALTIES[name](seen("binary", layer, member)).item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", SLOW)
def test_each_penalty_trains_alike_batched_and_looped(name: Penalty) -> None:
    federation = random_federation(clients=3, contexts=2, samples=14, shape=(3,), seed=2)
    algorithms = [PerInvFL(invariant_by=name, penalty_weight=3.0, beta=0.1, l2=l2) for l2 in (0.0, 0.1)]
    ended = []
    for executor in ("vmap", "loop"):
        how = Training(executor=executor, device="cpu")
        simulation = Simulation(algorithms, [federation], [0, 1], how, MODEL)
        for _ in range(3):
            simulation.round()
        assert (simulation.broken < 0).all()
        ended.append(simulation.personal_models(simulation.everyone))
    for leaf in ended[0]:
        torch.testing.assert_close(ended[0][leaf], ended[1][leaf], rtol=1e-4, atol=1e-5)
    plain = Simulation(
        [PerInvFL(penalty_weight=0.0, beta=0.1)], [federation], [0], Training(executor="loop", device="cpu"), MODEL
    )
    for _ in range(3):
        plain.round()
    without = plain.personal_models(plain.everyone)["0.weight"][0]
    assert (ended[1]["0.weight"][0] - without).abs().max() > 1e-3  # the penalty did something


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_round_of_v_rex_goes_down_mean_and_variance(executor: Literal["vmap", "loop"]) -> None:
    """With the risks of this very ν known to the server, a step of size 1 is the gradient of mean + λ variance."""
    federation, weight = random_federation(clients=4, contexts=1, samples=12, shape=(3,), seed=3), 7.0
    algorithm = VREx(penalty_weight=weight, learning_rate=1.0, rescale=False)
    how = Training(executor=executor, device="cpu")
    simulation = Simulation([algorithm], [federation], [0], how, MODEL)
    start = {name: leaf[0] for name, leaf in simulation.model.strip(simulation.server.params).items()}
    model = reference.network(start)
    own = [reference.risk("binary", model, share) for share in reference.samples_of(federation)]
    mean = sum(own) / 4
    variance = sum((r - mean) ** 2 for r in own) / 4
    (mean + weight * variance).backward()  # type: ignore[union-attr]
    ahead = torch.tensor([[(r - mean).item() for r in own]])
    assert ahead.abs().max() > 0.01  # else the variance would not matter
    simulation.server = simulation.server._replace(weights=ahead)
    simulation.round()
    moved = tree.map(lambda now, was: (was - now[0]).double(), simulation.model.strip(simulation.server.params), start)
    layers = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
    for number, layer in enumerate(layers):
        torch.testing.assert_close(moved[f"{number}.weight"], layer.weight.grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(moved[f"{number}.bias"], layer.bias.grad, rtol=1e-4, atol=1e-6)


def test_irm_with_another_penalty_keeps_its_schedule() -> None:
    algorithm = IRM(invariant_by="fishr", penalty_weight=50.0, warmup_rounds=3)
    assert [algorithm.penalty(t) for t in (0, 2, 3)] == [1.0, 1.0, 50.0]
