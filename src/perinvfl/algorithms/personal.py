"""A model for each client: trained along with the global one, or fine-tuned from it at the end."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from perinvfl.algorithms.base import Algorithm, by_optimizer, erm
from perinvfl.algorithms.messages import Broadcast, ClientState
from perinvfl.core import optimizers, tree
from perinvfl.core.hyper import LogUniform, OneOf, hyper
from perinvfl.core.tree import Params
from perinvfl.errors import UserError
from perinvfl.learning.problem import Batches, Descent, Number, Problem


@dataclass(frozen=True)
class Personal(Algorithm):
    """Fields of the methods that train a personal model θᵢ along with ν."""

    has_personal: ClassVar[bool] = True

    personal_steps: int = hyper(
        1,
        "steps of the personal model for each step of the shared one; more let it adapt faster, and cost "
        "time; with 1 both move at the same pace",
        symbol="S",
        least=1,
        most=10**6,
    )
    personal_learning_rate: float = hyper(
        0.1,
        "size of the personal model's steps; larger adapts faster to the client, but overfits or diverges "
        "sooner; the default suits sgd, adam needs about 0.001",
        symbol="η",
        above=0,
        search=by_optimizer("personal_optimizer"),
    )
    personal_optimizer: Literal["sgd", "adam"] = hyper(
        "sgd",
        "how the personal model steps: sgd follows the gradient as it is, the usual choice; adam scales each "
        "coordinate by its recent gradients, which makes the step size less critical",
    )

    def init_client(self, params: Params, contexts: int) -> ClientState:
        state = super().init_client(params, contexts)
        return state._replace(
            personal=tree.map(torch.clone, params),
            personal_moments=optimizers.start(self.personal_optimizer, params),
        )

    def personal(self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches) -> Params:
        return state.personal

    def personal_rate(self, round: Number, first: Number = 0) -> Number:
        """η in this round; first: the one in which the personal model sets out."""
        return self.personal_learning_rate * self.cooled(round, first, self.cooling)

    def check_pull(self, where: str, key: str, pull: Any, factor: float, scale: float = 1.0) -> None:
        """A plain step of size η on (factor/2)·pull·‖θ − ν‖² grows without bound once η·factor·pull exceeds 2."""
        strongest = max(pull, default=0.0) if isinstance(pull, tuple) else pull
        if self.personal_optimizer == "sgd" and factor * strongest * self.personal_learning_rate / scale > 2:
            limit = 2 * scale / (factor * self.personal_learning_rate)
            raise UserError(
                f"{where}.{key} = {pull} with personal_learning_rate = {self.personal_learning_rate:g} must diverge: "
                f"{key} can be at most {limit:g} with that step size."
            )


@dataclass(frozen=True)
class FineTuned(Algorithm):
    """Fields of the methods that train ν to the end and then fine-tune it at each client."""

    has_personal: ClassVar[bool] = True

    finetune_steps: int = hyper(
        10,
        "steps that each client takes from the final shared model on its own data; more fit the client "
        "better, but overfit sooner and forget what other clients taught; 10 adapts lightly",
        least=1,
        most=10**6,
        search=OneOf((1, 5, 10, 20)),
    )
    finetune_learning_rate: float = hyper(
        0.1,
        "size of the fine-tuning steps; larger fits the client faster, but overfits or diverges sooner; the "
        "default suits sgd, adam needs about 0.001",
        above=0,
        search=LogUniform(1e-3, 0.3),
    )
    finetune_optimizer: Literal["sgd", "adam"] = hyper(
        "sgd",
        "how fine-tuning steps: sgd follows the gradient as it is, the usual choice; adam scales each "
        "coordinate by its recent gradients, which makes the step size less critical",
    )

    def batches_at_end(self) -> int:
        return self.finetune_steps

    def personal(self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches) -> Params:
        theta, moments = broadcast.params, optimizers.start(self.finetune_optimizer, broadcast.params)
        how = Descent(self.finetune_optimizer, self.finetune_learning_rate, self.l2)
        for f in range(self.finetune_steps):
            theta, moments, _ = problem.descend(erm(problem), theta, batches[f], how, moments)
        return theta
