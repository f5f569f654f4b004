"""What to run when nothing has been tuned: PerInvFL's two models with steps that need no setting.

What is done about a shortcut is decided before the first round (`preparation.recommended`). Every step moves the
weights by about the same share of their own size, so that neither the scale of the data nor the width of the network
needs another step size; step sizes fall along half a cosine. θᵢ starts from ν after three quarters of the rounds. If
the model has convolutions, ν is replaced by its mean over the rounds at that point.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.base import erm
from perinvfl.algorithms.fedavg import FedAvg
from perinvfl.algorithms.local_steps import LocalSteps
from perinvfl.algorithms.messages import Broadcast, ClientState, ServerState, Upload
from perinvfl.algorithms.perinvfl_options import PerInvFL
from perinvfl.core import optimizers, tree
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Batches, FeatureObjective, Number, Objective, Problem

STEP, PERSONAL_STEP = 0.05, 0.01  # of the weights' own size
USUAL_ROUNDS = 100  # in a longer run steps are smaller, so that the way is as long: more rounds do not overfit
EARLY_ROUNDS, LATER_SCALE = 50, 100.0
SOUND = "sound."  # the beginning of names in the server's memory: the last model whose update was finite
SHARED_PART = 0.75  # of the rounds, before θᵢ starts
SETTLED = 1 / 6  # of the rounds, after which the mean of ν begins, where the model has convolutions
SQUARED_NORM, MOST_SQUARED_NORM = 1.0, 0.01  # the weight of ‖params‖²: this over a client's samples, and at most that


@dataclass(frozen=True)
class Recommended(PerInvFL):
    """Looks for shortcuts, leaves them out or discounts them, and trains a shared model ν and personal models θᵢ."""

    title: ClassVar[str] = "Recommended"
    paper: ClassVar[str] = "this project"
    recovers: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = tuple(field.name for field in dataclasses.fields(PerInvFL))

    def over(self, rounds: int) -> "Recommended":
        return dataclasses.replace(
            self,
            learning_rate=1.0,
            server_optimizer="adam",
            personal_optimizer="adam",
            beta=0.1,
            cooling=rounds,
            personal_after=int(SHARED_PART * rounds),
            average_after=max(1, int(SETTLED * rounds)),
            server_learning_rate=STEP * min(1.0, USUAL_ROUNDS / rounds),
            personal_learning_rate=PERSONAL_STEP * min(1.0, USUAL_ROUNDS / rounds),
        )

    def at(self, round: int) -> "Recommended":
        if round >= self.personal_after:
            return self
        return Following(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        l2 = squared_norm_weight(broadcast.params, batches.data.context)
        rate = self.personal_learning_rate * size_of(broadcast.params)
        own = dataclasses.replace(self, l2=l2, personal_learning_rate=rate)  # type: ignore[arg-type]
        upload, new = super(Recommended, own).client(problem, broadcast, state, batches)
        fine = all_finite(new.personal)
        return upload, new._replace(
            personal=tree.map(lambda now, before: torch.where(fine, now, before), new.personal, state.personal),
            personal_moments=optimizers.forget(new.personal_moments, ~fine),
        )

    def personal(self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches) -> Params:
        early = state.last < self.personal_after  # it has not taken part since then
        return tree.map(lambda nu, theta: torch.where(early, nu, theta), broadcast.params, state.personal)

    # A run that becomes infinite goes back to the last model that was sound, and halves its steps ---------------------

    def init_server(self, params: Params, clients: int) -> ServerState:
        state = super().init_server(params, clients)
        if not has_convolutions(params):
            state = state._replace(average={})
        kept = {"share": state.round + 1} | {SOUND + name: leaf.clone() for name, leaf in params.items()}
        return state._replace(moments=state.moments._replace(steps={**state.moments.steps, **kept}))

    def server(self, server: ServerState, update: Params, risks: Tensor, clients: Tensor) -> ServerState:
        fine, kept = all_finite(update), server.moments.steps
        sound = {name: torch.where(fine, leaf, kept[SOUND + name]) for name, leaf in server.params.items()}
        rate = kept["share"] * self.server_learning_rate * size_of(sound)
        own = dataclasses.replace(self, server_learning_rate=rate)  # type: ignore[arg-type]
        usable = tree.map(lambda leaf: torch.where(fine, leaf, torch.zeros_like(leaf)), update)
        new = super(Recommended, own).server(server._replace(params=sound), usable, risks, clients)
        moments = optimizers.forget(new.moments, ~fine)
        steps = {**moments.steps, "share": torch.where(fine, kept["share"], kept["share"] / 2)}
        steps |= {SOUND + name: leaf for name, leaf in sound.items()}
        params = tree.map(lambda now, before: torch.where(fine, now, before), new.params, sound)
        return new._replace(params=params, moments=moments._replace(steps=steps))

    # Convolutions learn a few pictures by heart, and no weight of the squared norm holds them back. The mean of ν over
    # its way (Cha et al. 2021) stands in for the choice of a round to stop at; θ_i sets out from that mean.

    def averaged(self, before: ServerState, now: ServerState) -> ServerState:
        if not before.average:
            return now
        now = super().averaged(before, now)
        over = now.round >= self.personal_after
        return now._replace(params=tree.map(lambda mean, nu: torch.where(over, mean, nu), now.average, now.params))

    def loss_scale(self, round: Number) -> Number:
        """What the squared norm and the pull towards ν are divided by: they count while models find their way."""
        if isinstance(round, Tensor):
            return torch.where(round < EARLY_ROUNDS, 1.0, LATER_SCALE)
        return 1.0 if round < EARLY_ROUNDS else LATER_SCALE

    def objective_changes(self, last: Number, now: Number) -> bool | Tensor:
        changed = (last < EARLY_ROUNDS) & (now >= EARLY_ROUNDS)
        return changed if isinstance(now, Tensor) else bool(changed)

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> Objective | FeatureObjective:
        return erm(problem)

    def personal_objective(self, problem: Problem, broadcast: Broadcast, q: Tensor) -> Objective | FeatureObjective:
        risk = erm(problem)
        return lambda *seen: (risk(*seen)[0], q)

    def check(self, where: str) -> None:
        """There is nothing to set."""


@dataclass(frozen=True)
class Following(Recommended):
    """`recommended` until θᵢ starts: only ν is trained, and the batch of θᵢ is skipped."""

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        l2 = squared_norm_weight(broadcast.params, batches.data.context)
        own = dataclasses.replace(self, l2=l2)  # type: ignore[arg-type]
        steps = LocalSteps.begin(problem, broadcast.params, state.moments)
        steps = own.local_step(problem, broadcast, steps, batches, self.personal_steps)
        return steps.upload(), state._replace(moments=steps.moments)


@dataclass(frozen=True)
class Reference(FedAvg):
    """One model of all clients by steps of the same kind, to see what is easy to learn from these data."""

    title: ClassVar[str] = "Reference"

    def server(self, server: ServerState, update: Params, risks: Tensor, clients: Tensor) -> ServerState:
        rate = self.server_learning_rate * size_of(server.params)
        return super(Reference, dataclasses.replace(self, server_learning_rate=rate)).server(  # type: ignore[arg-type]
            server, update, risks, clients
        )


def reference(share: float = 1.0) -> Reference:
    """share: of the usual step size."""
    return Reference(learning_rate=1.0, server_optimizer="adam", server_learning_rate=share * STEP)


def all_finite(params: Params) -> Tensor:
    return torch.stack([torch.isfinite(leaf).all() for leaf in params.values()]).all()


def squared_norm_weight(params: Params, context: Tensor) -> Number:
    """What few samples cannot settle, small weights do: so the fewer samples, the more it counts.

    Convolutions come before a norm that undoes their scale, and small weights would mean nothing to them.
    """
    if has_convolutions(params):
        return 0.0
    return (SQUARED_NORM / (context >= 0).sum().clamp(min=1)).clamp(max=MOST_SQUARED_NORM)


def has_convolutions(params: Params) -> bool:
    return any(leaf.ndim > 3 for leaf in params.values())


def size_of(params: Params) -> Tensor:
    """The typical size of a weight, units that only pad a layer not counted."""
    weights = [leaf for leaf in params.values() if leaf.ndim > 1] or list(params.values())
    squares = torch.stack([leaf.square().sum() for leaf in weights]).sum()
    return (squares / torch.stack([(leaf != 0).sum() for leaf in weights]).sum().clamp(min=1)).sqrt()
