"""Inferred contexts: soft shares climb as autograd and Adam do, and methods train over them."""

import dataclasses

import pytest
import torch
from torch import Tensor

from perinvfl.algorithms import IRM, GroupDRO, PerInvFL
from perinvfl.algorithms.base import Algorithm
from perinvfl.data.federation import Split
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.shortcut import (
    answers,
    soft_shares,
)
from perinvfl.learning.training import Training
from tests.preparation.small_contexts import (
    EXECUTORS,
    MODEL,
    SOFT,
    infer,
    slow_reference,
    small,
)


def eiil_by_autograd(logits: Tensor, y: Tensor, steps: int) -> Tensor:
    """Climb Σ_e ‖∇_w mean(q_e loss(w · f))‖² by torch's Adam, the gradient in w by a tape of its own."""
    w = torch.ones((), dtype=torch.float64, requires_grad=True)
    loss = torch.nn.BCEWithLogitsLoss(reduction="none")
    slopes = [torch.autograd.grad(loss(w * z, label), w)[0].sign() for z, label in zip(logits[:, 0], y, strict=True)]
    place = (0.01 * torch.stack(slopes)).requires_grad_()
    climber = torch.optim.Adam([place], lr=0.1, maximize=True)
    for _ in range(steps):
        q = torch.sigmoid(place)
        penalty = torch.zeros((), dtype=torch.float64)
        for share in (1 - q, q):
            risk = (share * loss(w * logits[:, 0], y)).mean()
            penalty = penalty + torch.autograd.grad(risk, w, create_graph=True)[0] ** 2
        climber.zero_grad()
        penalty.backward(inputs=[place])
        climber.step()
    return torch.sigmoid(place).detach()


def drawn_logits(size: int, seed: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(size, 1, generator=source, dtype=torch.float64)
    return logits, torch.randint(2, (size,), generator=source).double()


@pytest.mark.parametrize("steps", [1, 12])
def test_soft_shares_climb_as_autograd_and_adam_do(steps: int) -> None:
    logits, y = drawn_logits(15, 0)
    torch.testing.assert_close(soft_shares("binary", logits, y, steps), eiil_by_autograd(logits, y, steps))


@pytest.mark.parametrize("seed", range(3))
def test_soft_shares_tend_to_the_hard_split(seed: int) -> None:
    logits, y = drawn_logits(40, seed)
    wrong = answers("binary", logits) != y
    early, late = (soft_shares("binary", logits, y, steps) for steps in (5, 3000))
    assert torch.equal(late > 0.5, wrong)
    assert (late - wrong.double()).abs().max() < 0.05
    assert (early - wrong.double()).abs().min() > 0.2  # soft where it is stopped early


def test_soft_shares_know_nothing_of_padding() -> None:
    federation = small(contexts=1)
    train = federation.train
    more = Split(
        torch.cat([train.x, torch.full((3, 5, 3), 9.0)], 1),
        torch.cat([train.y, torch.ones(3, 5)], 1),
        torch.cat([train.context, torch.full((3, 5), -1)], 1),
    )
    plain, padded = (infer(f, SOFT).train.context for f in (federation, dataclasses.replace(federation, train=more)))
    assert (padded[:, 20:] == -1).all() and torch.equal(plain < 0, train.context < 0)
    torch.testing.assert_close(padded[:, :20], plain, rtol=1e-4, atol=1e-5)
    for i in range(3):  # and each client's are those of its real samples alone
        real = train.context[i] >= 0
        logits = slow_reference(federation).nu(train.x[i, real].double()).detach()
        expected = eiil_by_autograd(logits, train.y[i, real].double(), SOFT.soft_steps)
        torch.testing.assert_close(plain[i, real].double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("algorithm", [IRM(), GroupDRO(), PerInvFL(), PerInvFL(invariance="groupdro")])
def test_methods_train_over_soft_shares_alike_batched_and_looped(algorithm: Algorithm) -> None:
    federation = infer(small(contexts=1), SOFT)
    assert federation.train.context.is_floating_point() and federation.contexts == 2
    ended = []
    for executor in EXECUTORS:
        simulation = Simulation([algorithm], [federation], [0], Training(executor=executor, device="cpu"), MODEL)  # type: ignore[arg-type]
        for _ in range(3):
            simulation.round()
        assert (simulation.broken < 0).all()
        ended.append(simulation.server.params)
    for name in ended[0]:
        torch.testing.assert_close(ended[0][name], ended[1][name], rtol=1e-4, atol=1e-5)
