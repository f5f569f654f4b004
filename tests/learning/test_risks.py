"""Risks: closed forms against autograd, the unbiased penalty, padding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from perinvfl.data.federation import Task
from perinvfl.learning import risks
from tests.reference import irm_penalty, mean_loss, scale_gradient

TASKS: tuple[Task, ...] = ("binary", "multiclass", "regression")


def draw(task: Task, size: int, seed: int, spread: float = 2.0) -> tuple[Tensor, Tensor]:
    """Random logits [size, outputs] and labels [size], float64 where they are numbers."""
    source = torch.Generator().manual_seed(seed)
    outputs = 3 if task == "multiclass" else 1
    logits = spread * torch.randn(size, outputs, generator=source, dtype=torch.float64)
    if task == "multiclass":
        return logits, torch.randint(3, (size,), generator=source)
    if task == "binary":
        return logits, torch.randint(2, (size,), generator=source).double()
    return logits, torch.randn(size, generator=source, dtype=torch.float64)


@given(
    task=st.sampled_from(TASKS),
    size=st.integers(1, 9),
    seed=st.integers(0, 10_000),
    spread=st.floats(0.01, 30.0),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_scale_gradient_equals_autograd(task: Task, size: int, seed: int, spread: float) -> None:
    logits, y = draw(task, size, seed, spread)
    torch.testing.assert_close(risks.scale_gradients(task, logits, y).mean(), scale_gradient(task, logits, y))
    torch.testing.assert_close(risks.losses(task, logits, y).mean(), mean_loss(task, logits, y))


@given(
    task=st.sampled_from(TASKS),
    size=st.integers(2, 12),
    contexts=st.integers(1, 3),
    paired=st.booleans(),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_penalties_and_their_gradient_equal_autograd(
    task: Task, size: int, contexts: int, paired: bool, seed: int
) -> None:
    """Value, and gradient in the logits, which for the reference takes a second backward pass."""
    logits, y = draw(task, size, seed)
    context = torch.randint(contexts, (size,), generator=torch.Generator().manual_seed(seed + 1))
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    member = risks.membership(context, contexts).double()
    penalties = risks.context_penalties(task, ours, y, member, paired)
    expected = []
    for number in range(contexts):
        own = context == number
        expected.append(irm_penalty(task, theirs, y, own, paired) if own.any() else 0.0 * theirs.sum())
    weights = torch.arange(1.0, contexts + 1, dtype=torch.float64)
    torch.testing.assert_close(penalties, torch.stack(expected))
    (weights * penalties).sum().backward()
    (weights * torch.stack(expected) + 0.0 * theirs.sum()).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("task", TASKS)
def test_the_paired_penalty_is_unbiased_and_the_square_is_not(task: Task) -> None:
    logits, y = draw(task, 40, seed=3, spread=1.0)
    truth = risks.scale_gradients(task, logits, y).mean().square()
    draws, size = 40_000, 8
    places = torch.randint(40, (draws, size), generator=torch.Generator().manual_seed(0))
    member = torch.ones(size, 1, dtype=torch.float64)

    def estimate(paired: bool) -> Tensor:  # [draws]
        one = torch.vmap(lambda z, label: risks.context_penalties(task, z, label, member, paired)[0])
        return one(logits[places], y[places])

    unbiased, square = estimate(True), estimate(False)
    error = unbiased.std() / draws**0.5
    variance = risks.scale_gradients(task, logits, y).var(correction=0)
    assert abs(unbiased.mean() - truth) < 4 * error
    assert square.mean() - truth > 20 * error  # else this test could not tell the two apart
    assert square.mean() - truth == pytest.approx((variance / size).item(), rel=0.1)


def test_membership_and_pooling_leave_padding_out() -> None:
    context = torch.tensor([0, 2, -1, 1, 2, -1])
    expected = torch.tensor([[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=torch.float32)
    assert torch.equal(risks.membership(context, 3), expected)
    pooled = risks.whole(context)
    assert pooled is not None and pooled.tolist() == [[1], [1], [0], [1], [1], [0]]


def test_context_means_ignore_padding_and_are_zero_for_an_absent_context() -> None:
    context = torch.tensor([0, 0, 2, -1])
    values = torch.tensor([1.0, 3.0, 5.0, 1e6])
    assert risks.context_means(values, risks.membership(context, 4)).tolist() == [2.0, 0.0, 5.0, 0.0]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("paired", [False, True])
def test_padding_changes_no_risk_and_no_penalty(task: Task, paired: bool) -> None:
    logits, y = draw(task, 10, seed=1)
    context = torch.tensor([0, 1, 1, 0, 0, 1, 0, 1, 1, 0])
    padded_logits = torch.cat([logits, 1e3 * torch.ones_like(logits[:3])])
    padded_y = torch.cat([y, torch.zeros_like(y[:3])])
    padded_context = torch.cat([context, torch.full((3,), -1)])

    def both(z: Tensor, label: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        member = risks.membership(where, 2).double()
        means = risks.context_means(risks.losses(task, z, label), member)
        return means, risks.context_penalties(task, z, label, member, paired)

    for plain, padded in zip(both(logits, y, context), both(padded_logits, padded_y, padded_context), strict=True):
        torch.testing.assert_close(plain, padded)
    torch.testing.assert_close(
        risks.measure(task, padded_logits, padded_y, padded_context), risks.measure(task, logits, y, context)
    )


def test_a_padded_sample_gets_no_gradient() -> None:
    logits = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    y, context = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0, 0, -1])
    member = risks.membership(context, 1)
    risks.context_penalties("binary", logits, y, member, paired=False).sum().backward()
    assert logits.grad is not None
    assert logits.grad[2].item() == 0 and logits.grad[:2].abs().min() > 0


def test_raise_weights_is_the_formula() -> None:
    q, r = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([1.0, 2.0, 0.5])
    raised = q * torch.exp(0.7 * r)
    torch.testing.assert_close(risks.raise_weights(q, r, torch.ones(3), 0.7), raised / raised.sum())


def test_raise_weights_ignores_absent_groups() -> None:
    q, r = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([1.0, 100.0, 0.5])
    present = torch.tensor([1.0, 0.0, 1.0])
    got = risks.raise_weights(q, r, present, 0.7)
    kept = torch.tensor([0.2, 0.5]) * torch.exp(0.7 * torch.tensor([1.0, 0.5]))
    torch.testing.assert_close(got[[0, 2]], kept / kept.sum())
    assert got[1] == 0


def test_raise_weights_sends_no_gradient_through_the_risks() -> None:
    r = torch.tensor([1.0, 2.0], requires_grad=True)
    assert not risks.raise_weights(torch.tensor([0.5, 0.5]), r, torch.ones(2), 1.0).requires_grad


def test_raise_weights_survives_a_step_of_zero() -> None:
    q = torch.tensor([0.25, 0.75])
    torch.testing.assert_close(risks.raise_weights(q, torch.tensor([3.0, 1.0]), torch.ones(2), 0.0), q)


def test_measure() -> None:
    context = torch.tensor([0, 1, 0, -1])
    binary = risks.measure("binary", torch.tensor([[2.0], [-1.0], [0.5], [9.0]]), torch.tensor([1.0, 1, 1, 0]), context)
    assert binary.item() == pytest.approx(2 / 3)
    logits = torch.tensor([[0.0, 1, 2], [3, 1, 2], [0, 5, 2], [9, 0, 0]])
    multiclass = risks.measure("multiclass", logits, torch.tensor([2, 0, 0, 0]), context)
    assert multiclass.item() == pytest.approx(2 / 3)
    z = torch.tensor([[1.0], [2.0], [3.0], [1e4]])
    regression = risks.measure("regression", z, torch.tensor([0.0, 2.0, 1.0, 0.0]), context)
    assert regression.item() == pytest.approx(5 / 3)
