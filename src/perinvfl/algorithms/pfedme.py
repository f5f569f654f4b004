"""pFedMe: Dinh, Tran & Nguyen, Personalized Federated Learning with Moreau Envelopes, 2020, Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.base import ADAM_RATES, Broadcast, ClientState, LocalSteps, Personal, Purpose, Upload, erm
from perinvfl.core import optimizers, tree
from perinvfl.core.hyper import By, LogUniform, hyper
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Batches, Descent, Number, Problem


@dataclass(frozen=True)
class PFedMe(Personal):
    """θ solves min f(θ) + (λ/2)‖θ − w_i‖² by K steps on one batch; w_i then steps along λ(w_i − θ)."""

    title: ClassVar[str] = "pFedMe"
    paper: ClassVar[str] = "Dinh, Tran & Nguyen 2020"
    purpose: ClassVar[Purpose] = "personal"

    local_steps: int = hyper(20, "local rounds, one batch each", symbol="R", least=1, most=10**6)
    personal_steps: int = hyper(5, "steps of the personal model on each batch", symbol="K", least=1, most=10**6)
    learning_rate: float = hyper(
        0.005, "step size of w_i along λ(w_i − θ)", symbol="η", above=0, search=LogUniform(1e-3, 0.3)
    )
    personal_learning_rate: float = hyper(
        0.09, "step size of the personal model", above=0, search=LogUniform(1e-2, 0.3)
    )
    pull: float | tuple[float, ...] = hyper(
        15.0, "pull of θ towards w_i", symbol="λ", above=0, search=LogUniform(0.1, 15.0)
    )
    server_learning_rate: float = hyper(
        1.0,
        "how far the server moves to the mean of the w_i",
        symbol="β",
        above=0,
        search=By("server_optimizer", {"adam": ADAM_RATES}),
    )

    def init_client(self, params: Params, contexts: int) -> ClientState:
        return super().init_client(params, contexts)._replace(personal_moments=optimizers.start("sgd", params))

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        steps = LocalSteps.begin(problem, broadcast.params, state.moments)
        theta = broadcast.params  # θ begins at w^t, and so does its optimizer
        theta_moments = optimizers.start(self.personal_optimizer, theta)
        pull: Number = self.pull  # type: ignore[assignment]  # of a list, an executor gives each client its own
        how = Descent(self.personal_optimizer, self.personal_rate(broadcast.round), self.l2, pull)
        for r in range(self.local_steps):
            w, batch = steps.params, batches[r]
            for k in range(self.personal_steps):  # θ ← θ − lr_p(∇f + λ(θ − w_i))
                theta, theta_moments, risk = problem.descend(erm(problem), theta, batch, how, theta_moments, anchor=w)
                if r == k == 0:
                    steps = steps.noting_risk(risk)  # θ was w^t: this is R(w^t; D_i)
            envelope = tree.map(lambda v, t: pull * (v - t), w, theta)  # ∇F_i(w) = λ(w − θ(w))
            steps = steps.move(self.optimizer, envelope, self.learning_rate)
        return steps.upload(), state._replace(personal=theta, moments=steps.moments)

    def check(self, where: str) -> None:
        super().check(where)
        self.check_pull(where, "pull", self.pull, factor=1.0)
