"""pFedMe: Dinh, Tran & Nguyen, Personalized Federated Learning with Moreau Envelopes, 2020, Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.base import ADAM_RATES, Broadcast, ClientState, LocalSteps, Purpose, Upload, erm
from perinvfl.algorithms.personal import Personal
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

    local_steps: int = hyper(
        20,
        "steps of a client's copy of the shared model in a round, one batch each; more steps save rounds, but "
        "let clients drift apart; 20 is the paper's",
        symbol="R",
        least=1,
        most=10**6,
    )
    personal_steps: int = hyper(
        5,
        "steps of the personal model for each batch; more come nearer to the exact minimum that the method "
        "asks for, and cost time; 5 is the paper's",
        symbol="K",
        least=1,
        most=10**6,
    )
    learning_rate: float = hyper(
        0.005,
        "size of the steps with which a client's copy of the shared model follows the personal model; larger "
        "is faster but less steady; 0.005 is the paper's",
        symbol="η",
        above=0,
        search=LogUniform(1e-3, 0.3),
    )
    personal_learning_rate: float = hyper(
        0.09,
        "size of the personal model's steps; at most 2 / pull, since larger ones diverge; 0.09 is small "
        "enough for the default pull",
        above=0,
        search=LogUniform(1e-2, 0.3),
    )
    pull: float | tuple[float, ...] = hyper(
        15.0,
        "strength of the pull of the personal model towards the client's copy of the shared one; larger keeps "
        "clients alike, smaller lets each fit its own data; 15 is the paper's",
        symbol="λ",
        above=0,
        search=LogUniform(0.1, 15.0),
    )
    server_learning_rate: float = hyper(
        1.0,
        "how far the server moves towards the mean of the clients' models; less is steadier but slower; 1 "
        "takes the mean; with server_optimizer adam use about 0.001",
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
