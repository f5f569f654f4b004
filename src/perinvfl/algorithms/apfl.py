"""APFL: Deng, Kamani & Mahdavi, Adaptive Personalized Federated Learning, 2020, Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from perinvfl.algorithms.base import Broadcast, ClientState, LocalSteps, Purpose, Upload, erm
from perinvfl.algorithms.personal import Personal
from perinvfl.core import optimizers, tree
from perinvfl.core.hyper import OneOf, hyper
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Batches, Problem


@dataclass(frozen=True)
class APFL(Personal):
    """The global model w by FedAvg, and at each client a mixture v̄ = α v + (1 − α) w, in which v and α are its own.

    v moves with w, step by step, on the same batch: its gradient is that of v̄, times α.
    """

    title: ClassVar[str] = "APFL"
    paper: ClassVar[str] = "Deng, Kamani & Mahdavi 2020"
    purpose: ClassVar[Purpose] = "personal"
    unused: ClassVar[tuple[str, ...]] = ("personal_steps",)

    mixing: float = hyper(
        0.5,
        "share of the personal model in a client's mixture at the start, the rest being the shared model; "
        "more suits clients that differ much; 0.5 weighs both equally",
        symbol="α",
        least=0,
        most=1,
        search=OneOf((0.25, 0.5, 0.75)),
    )
    adaptive: bool = hyper(
        True,
        "let each client learn its share of the mixture, by one gradient step per round (Eq. 10), so that "
        "each finds how personal its model should be; true learns it, false keeps mixing",
    )

    def init_client(self, params: Params, contexts: int) -> ClientState:
        alpha = next(iter(params.values())).new_full((), self.mixing)
        return super().init_client(params, contexts)._replace(weights={"alpha": alpha})

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        alpha, v, moments = state.weights["alpha"], state.personal, state.personal_moments
        rate = self.personal_rate(broadcast.round)
        steps = LocalSteps.begin(problem, broadcast.params, state.moments)
        for r in range(self.local_steps):
            w, mixed = steps.params, mix(alpha, v, steps.params)
            gradient, _ = problem.gradient(erm(problem), mixed, batches[r])
            gradient = tree.map(lambda g, p: g + 2 * self.l2 * p, gradient, mixed)  # ∇f(v̄)
            steps = self.local_step(problem, broadcast, steps, batches, r)  # w ← w − γ ∇f(w)
            if self.adaptive and r == 0:
                along = tree.map(lambda g, own, shared: (g * (own - shared)).sum(), gradient, v, w)
                slope = torch.stack(list(along.values())).sum()  # ⟨∇f(v̄), v − w⟩
            own = tree.map(lambda g: alpha * g, gradient)
            v, moments = optimizers.step(self.personal_optimizer, v, own, moments, rate)  # v ← v − η α ∇f(v̄)
        if self.adaptive:
            alpha = (alpha - rate * slope).clamp(0, 1)
        return steps.upload(), state._replace(
            personal=v, personal_moments=moments, moments=steps.moments, weights={"alpha": alpha}
        )

    def personal(self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches) -> Params:
        return mix(state.weights["alpha"], state.personal, broadcast.params)


def mix(alpha: torch.Tensor, v: Params, w: Params) -> Params:
    """v̄ = α v + (1 − α) w."""
    return tree.map(lambda own, shared: alpha * own + (1 - alpha) * shared, v, w)
