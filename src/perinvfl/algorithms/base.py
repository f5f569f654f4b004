"""The shape of a federated algorithm: pure functions for ONE client and ONE server, with explicit state.

What a server may see and what never leaves a client are different types: the only thing a client function gives to
the server is an `Upload`, which has no room for a personal model. Executors run these functions over many clients and
many trials at once; inside a batched sweep a hyper-parameter is a 0-d tensor instead of a float.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from perinvfl.algorithms.aggregation import Aggregation, Clipped, Masked, Matched, Mean, Trimmed
from perinvfl.algorithms.local_steps import LocalSteps
from perinvfl.algorithms.messages import Broadcast, ClientState, Combined, ServerState, Upload, WithheldRisks
from perinvfl.core import optimizers, tree
from perinvfl.core.hyper import By, LogUniform, hyper
from perinvfl.core.naming import in_short
from perinvfl.core.optimizers import Moments
from perinvfl.core.tree import Params
from perinvfl.errors import UserError
from perinvfl.learning import risks
from perinvfl.learning.problem import (
    Batches,
    Descent,
    FeatureObjective,
    Number,
    Objective,
    Problem,
    SlopedObjective,
    divided,
)
from perinvfl.models import Model

ADAM_RATES = LogUniform(3e-4, 1e-2)
Purpose = Literal["shared", "personal", "shift", "pooled"]


def is_set(number: float | Tensor) -> bool:
    """Whether a number that 0 turns off is on; a tensor in a batched sweep, where some trial sets it."""
    return isinstance(number, Tensor) or bool(number)


def by_optimizer(field: str) -> By:
    """Step sizes that make sense for plain gradient steps, and for Adam's."""
    return By(field, {"sgd": LogUniform(1e-2, 1.0), "adam": ADAM_RATES})


@dataclass(frozen=True)
class Algorithm:
    """Base of all: a global model ν trained by R local steps and averaged.

    A subclass says what its clients minimise in `global_objective`, or all that they do in `client`, and overrides the
    rest only where its paper differs.
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    # What it is for: one model for all clients, a model for each, models that hold where data differ from training, or
    # a comparison with all data in one place.
    purpose: ClassVar[Purpose] = "shared"
    has_global: ClassVar[bool] = True  # ν is trained, and worth evaluating
    has_personal: ClassVar[bool] = False  # personal() differs from ν
    unused: ClassVar[tuple[str, ...]] = ()  # inherited fields that mean nothing here
    uses_contexts: ClassVar[bool] = False  # its loss runs over a client's contexts, where `problem.over_contexts`
    recovers: ClassVar[bool] = False  # `server` knows what to do with an update that is not finite
    pooled: ClassVar[bool] = False  # not federated: takes the data of all clients in one place, to compare with
    needs_risks: ClassVar[bool] = False  # `server` must see the risk of each client, and not only that it took part

    local_steps: int = hyper(
        1,
        "gradient steps that a client takes in a round before it sends its update; more steps save rounds, "
        "but let clients drift apart; 1 sends an update after every step",
        symbol="R",
        least=1,
        most=10**6,
    )
    learning_rate: float = hyper(
        0.1,
        "size of a client's steps on the shared model; too small is slow, too large diverges; the default "
        "suits sgd, adam needs about 0.001",
        symbol="γ",
        above=0,
        search=by_optimizer("optimizer"),
    )
    optimizer: Literal["sgd", "adam"] = hyper(
        "sgd",
        "how a client steps: sgd follows the gradient as it is, the usual choice; adam scales each coordinate "
        "by its recent gradients, which makes the step size less critical",
    )
    server_learning_rate: float = hyper(
        1.0,
        "size of the server's step towards the mean of the clients' models; smaller is steadier but slower; 1 "
        "takes that mean; with server_optimizer adam use about 0.001",
        symbol="α",
        above=0,
        search=By("server_optimizer", {"adam": ADAM_RATES}),
    )
    server_optimizer: Literal["sgd", "adam"] = hyper(
        "sgd",
        "how the server steps: sgd moves towards the mean of the clients' models, as FedAvg does; adam takes "
        "the difference to that mean as a gradient and scales each coordinate, for models whose parts learn "
        "at different speeds",
    )
    l2: float = hyper(
        0.0,
        "weight decay: add this times the squared length of the parameters to the loss, against overfitting; "
        "0 adds nothing",
        least=0,
        search=LogUniform(1e-5, 3e-3),
    )
    cooling: int = hyper(
        0,
        "number of rounds over which the step sizes fall to 0, so that the last rounds change little and the "
        "result depends less on when training stops; 0 keeps them constant",
        least=0,
        later=True,
    )
    agreement: float = hyper(
        0.0,
        "damp the coordinates of the update on whose sign clients agree less than this, since what they "
        "disagree on may be a shortcut (FedGMA's τ); 0 damps none",
        least=0,
        most=1,
        later=True,
    )
    matching: float = hyper(
        0.0,
        "move the server's update away from the mean, by this times its length, towards the client that the "
        "mean helps least, so that no client is left behind (FedOMG's κ); 0 takes the mean",
        least=0,
        later=True,
    )
    trimming: float = hyper(
        0.0,
        "leave out this share of the largest and of the smallest values of each coordinate before updates are "
        "averaged, so that a few broken or hostile clients cannot move the model; 0.5 takes the median, 0 "
        "leaves nothing out",
        least=0,
        most=0.5,
        later=True,
    )
    clipping: float = hyper(
        0.0,
        "shorten updates that are longer than this times the median length, so that no single client "
        "outweighs the others; 0 shortens none",
        least=0,
        later=True,
    )
    average_after: int = hyper(
        0,
        "predict with the mean of the shared model over all rounds after this one, which is steadier under "
        "shift than a single round (SWAD); 0 predicts with the last round",
        least=0,
        later=True,
    )

    # What a client does ----------------------------------------------------------------------------------------

    def batches_per_round(self) -> int:
        """How many batches `client` looks at in a round."""
        return self.local_steps

    def batches_at_end(self) -> int:
        """How many batches `personal` looks at."""
        return 0

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        """R local steps of the global model and nothing personal, unless a subclass does more."""
        upload, moments = self.local_training(problem, broadcast, state.moments, batches)
        return upload, state._replace(moments=moments)

    def client_round(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        """`client`, with what has become wrong since the client last took part forgotten; executors call this."""
        forget = self.objective_changes(state.last, broadcast.round)
        state = state._replace(
            moments=optimizers.forget(state.moments, forget),
            personal_moments=optimizers.forget(state.personal_moments, forget),
        )
        upload, state = self.client(problem, broadcast, state, batches)
        return upload, state._replace(last=torch.zeros_like(state.last) + broadcast.round)

    def personal(self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches) -> Params:
        """What this client predicts with."""
        return broadcast.params

    # What the server does --------------------------------------------------------------------------------------

    def init_client(self, params: Params, contexts: int) -> ClientState:
        empty = Moments({}, {}, {})
        never = next(iter(params.values())).new_full((), -1)
        return ClientState({}, empty, optimizers.start(self.optimizer, params), {}, never)

    def shared_part(self, model: Model, params: Params) -> Params:
        """What of a model is sent and averaged, and all that the server has: everything, unless a part is personal."""
        return params

    def init_server(self, params: Params, clients: int) -> ServerState:
        """From the shared part of the first model."""
        moments = optimizers.start(self.server_optimizer, params)
        one = next(iter(params.values()))
        weights = one.new_full((clients,), 1 / clients)
        state = ServerState(params, moments, weights, one.new_zeros(()), self.start_control(params))
        return state._replace(average=tree.map(torch.clone, params)) if self.average_after else state

    def start_control(self, params: Params) -> Params:
        """What travels beside the model, as the server has it before the first round; {}: nothing does."""
        return {}

    def broadcast(self, server: ServerState, clients: Tensor) -> Broadcast:
        """For the clients taking part, [n]: the weight carries a client axis, the model is the same for all."""
        return Broadcast(server.params, torch.ones_like(server.weights)[clients], server.round, server.control)

    def sees_risks(self) -> bool:
        """Whether the server must see single risks, with these settings."""
        return self.needs_risks

    def sees_updates(self) -> bool:
        """Whether the server must see single updates, with these settings."""
        return self.aggregation().needs_updates

    def sends_control(self) -> bool:
        """Whether something travels beside the updates."""
        return bool(self.start_control({"any": torch.zeros(1)}))

    def aggregation(self) -> Aggregation:
        """How the clients' updates become one."""
        chosen: Aggregation = Mean()
        if is_set(self.matching):
            chosen = Matched(self.matching)
        if is_set(self.trimming):
            chosen = Trimmed(chosen, self.trimming)
        if is_set(self.agreement):
            chosen = Masked(chosen, self.agreement)
        if is_set(self.clipping):
            chosen = Clipped(chosen, self.clipping)
        return chosen

    def server_round(self, server: ServerState, combined: Combined, risks: Tensor, clients: Tensor) -> ServerState:
        """`server`, with the risks only if the algorithm declares that it needs them; drivers call this."""
        shown: Any = risks if self.sees_risks() else WithheldRisks(self.title)
        if combined.control:
            server = server._replace(control=self.server_control(server, combined.control, clients))
        return self.averaged(server, self.server(server, combined.update, shown, clients))

    def averaged(self, before: ServerState, now: ServerState) -> ServerState:
        """With the mean of ν over the rounds since `average_after`; until then the mean is ν itself."""
        if not self.average_after:
            return now
        share = 1 / (now.round - self.average_after).clamp(min=1)
        return now._replace(average=tree.map(lambda a, v: torch.lerp(a, v, share), before.average, now.params))

    def server_control(self, server: ServerState, control: Params, clients: Tensor) -> Params:
        """What the server makes of the mean of what clients [n] sent beside their updates; `server` finds it there."""
        return control

    def server(self, server: ServerState, update: Params, risks: Tensor, clients: Tensor) -> ServerState:
        """From the combined update and, where `needs_risks`, the risks [n] of the clients [n] that took part."""
        moments = optimizers.forget(server.moments, self.objective_changes(server.round - 1, server.round))
        rate = self.server_learning_rate * self.cooled(server.round, 0, self.global_cooling())
        if self.server_optimizer == "sgd":
            params, moments = optimizers.step("sgd", server.params, update, moments, -rate)
        else:
            gradient = tree.map(torch.neg, update)  # ν − mean ν_i: a pseudo-gradient
            params, moments = optimizers.step(self.server_optimizer, server.params, gradient, moments, rate)
        return server._replace(params=params, moments=moments, round=server.round + 1)

    # Pieces ----------------------------------------------------------------------------------------------------

    def cooled(self, round: Number, first: Number, last: Number) -> Number:
        """What is left of a step size in this round, if it falls along half a cosine between two others."""
        if not self.cooling:
            return 1.0
        share = (torch.as_tensor(round) - first) / (last - first)
        return (1 + torch.cos(math.pi * share.clamp(0, 1))) / 2

    def global_cooling(self) -> Number:
        """The round in which the global model comes to rest."""
        return self.cooling

    def objective_changes(self, last: Number, now: Number) -> bool | Tensor:
        """Whether the objective of round `now` differs from that of round `last`, so that Adam must forget."""
        return False

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> Objective | FeatureObjective:
        """What a client's local steps minimise for the global model, here its risk (ERM); its aux is R(ν; D_i)."""
        return erm(problem)

    def local_training(
        self, problem: Problem, broadcast: Broadcast, moments: Moments, batches: Batches
    ) -> tuple[Upload, Moments]:
        """R local steps of the global model from ν^t."""
        steps = LocalSteps.begin(problem, broadcast.params, moments)
        for r in range(self.local_steps):
            steps = self.local_step(problem, broadcast, steps, batches, r)
            if not isinstance(steps, LocalSteps):
                raise UserError(
                    f"{type(self).__name__}.local_step returned {in_short(steps)}; it must return LocalSteps."
                )
        return steps.upload(), steps.moments

    def local_step(
        self, problem: Problem, broadcast: Broadcast, steps: LocalSteps, batches: Batches, batch: int
    ) -> LocalSteps:
        """ν_{i,r+1} ← ν_{i,r} − γ ∇L(ν_{i,r}; D_i)."""
        how = Descent(self.optimizer, self.learning_rate, divided(self.l2, self.loss_scale(broadcast.round)))
        objective = self.global_objective(problem, broadcast)
        if objective is None:
            raise UserError(f"{type(self).__name__}.global_objective returned None; it must return an objective.")
        return steps.descend(problem, objective, batches[batch], how)

    def loss_scale(self, round: Number) -> Number:
        """What the whole loss is divided by."""
        return 1.0

    def at(self, round: int) -> "Algorithm":
        """The algorithm in this round, where a client does less in some rounds than in others; executors ask before
        every round."""
        return self

    def over(self, rounds: int) -> "Algorithm":
        """The algorithm in a run of so many rounds, where that decides settings that nobody sets."""
        return self

    def check(self, where: str) -> None:
        """Refuse settings that cannot work; a subclass that refuses more calls this one too."""
        if self.trimming and self.matching:
            raise UserError(f"{where}.trimming and {where}.matching each replace the mean; leave one of the two out.")


def erm(problem: Problem, weight: Number = 1.0) -> Objective:
    """The mean loss over all of a client's samples, times a weight; its aux is the mean loss."""

    def objective(logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        risk = risks.context_means(risks.losses(problem.task, logits, y), problem.whole(context))[0]
        return weight * risk, risk

    def slope(logits: Tensor, y: Tensor, context: Tensor) -> Tensor:
        return risks.binary_risk_slope(logits, y, weight)

    known = problem.task == "binary" and not problem.padded
    return SlopedObjective(objective, slope, risks.binary_risk) if known else objective
