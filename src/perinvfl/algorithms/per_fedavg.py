"""Per-FedAvg: Fallah, Mokhtari & Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach, 2020, Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, LocalSteps, Purpose, Upload, erm
from perinvfl.core import tree
from perinvfl.core.hyper import LogUniform, OneOf, hyper
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Batch, Batches, Problem


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """A global model that is good after one gradient step at a client: min mean f_i(w − α ∇f_i(w)).

    The gradient of that has a Hessian, I − α ∇²f. The first-order variant leaves it out (FO), the other takes it from
    the difference of two gradients (HF), for which activations should be smooth: at the kinks of a ReLU gradients jump.
    """

    title: ClassVar[str] = "Per-FedAvg"
    paper: ClassVar[str] = "Fallah, Mokhtari & Ozdaglar 2020"
    purpose: ClassVar[Purpose] = "personal"
    has_personal: ClassVar[bool] = True

    variant: Literal["first-order", "hessian-free"] = hyper(
        "first-order",
        "how to treat the second derivative of the method's loss: first-order, the default, leaves it out, "
        "which is fastest; hessian-free approximates it by a difference of gradients, which is closer to the "
        "method's aim and takes twice the time",
        search=OneOf(("first-order", "hessian-free")),
    )
    personal_learning_rate: float = hyper(
        0.1,
        "size of the one step with which a client makes the shared model its own; larger adapts it more, too "
        "large spoils it; 0.1 is a moderate step",
        symbol="α",
        above=0,
        search=LogUniform(1e-2, 0.5),
    )
    difference: float = hyper(
        0.01,
        "hessian-free: how far apart the two gradients of the difference are taken, in multiples of a "
        "gradient; smaller approximates better until rounding errors show; 0.01 suits float32",
        symbol="δ",
        above=0,
    )

    def batches_per_round(self) -> int:
        return self.local_steps * (3 if self.variant == "hessian-free" else 2)

    def batches_at_end(self) -> int:
        return 1

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        steps = LocalSteps.begin(problem, broadcast.params, state.moments)
        each, alpha, delta = self.batches_per_round() // self.local_steps, self.personal_learning_rate, self.difference
        for r in range(self.local_steps):
            w, first = steps.params, each * r
            gradient, risk = self.gradient(problem, w, batches[first])
            steps = steps if r else steps.noting_risk(risk)
            adapted = tree.map(lambda p, g: p - alpha * g, w, gradient)  # w̃ ← w − α ∇f(w; D)                  l. 6
            meta, _ = self.gradient(problem, adapted, batches[first + 1])  # ∇f(w̃; D')
            if self.variant == "hessian-free":
                ahead, behind = (
                    self.gradient(problem, tree.map(lambda p, g, d=d: p + d * g, w, meta), batches[first + 2])[0]
                    for d in (delta, -delta)
                )  # ∇²f(w; D'') ∇f(w̃; D') ≈ (∇f(w + δg) − ∇f(w − δg)) / 2δ                                 Eq. 10
                meta = tree.map(lambda g, a, b: g - alpha * (a - b) / (2 * delta), meta, ahead, behind)
            steps = steps.move(self.optimizer, meta, self.learning_rate)  # w ← w − β (I − α ∇²f) ∇f(w̃)         l. 7
        return steps.upload(), state._replace(moments=steps.moments)

    def gradient(self, problem: Problem, params: Params, batch: Batch) -> tuple[Params, Tensor]:
        """∇f, with the squared norm."""
        gradient, risk = problem.gradient(erm(problem), params, batch)
        return tree.map(lambda g, p: g + 2 * self.l2 * p, gradient, params), risk

    def personal(self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches) -> Params:
        gradient, _ = self.gradient(problem, broadcast.params, batches[0])
        return tree.map(lambda p, g: p - self.personal_learning_rate * g, broadcast.params, gradient)
