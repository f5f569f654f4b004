"""FedALA: Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, 2023, Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, LocalSteps, Purpose, Upload, erm
from perinvfl.algorithms.parts import names_of
from perinvfl.core import tree
from perinvfl.core.hyper import LogUniform, OneOf, hyper
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Batch, Batches, Problem


@dataclass(frozen=True)
class FedALA(Algorithm):
    """Each client begins a round at its last model θᵢ, moved towards the global Θ coordinate by coordinate:
    θ̂ᵢ = θᵢ + (Θ − θᵢ) ⊙ Wᵢ, with weights Wᵢ in [0, 1] that it learns on its own data.

    Needs no model of another client, unlike FedFomo, whose clients weigh each other's models.
    """

    title: ClassVar[str] = "FedALA"
    paper: ClassVar[str] = "Zhang et al. 2023"
    purpose: ClassVar[Purpose] = "personal"
    has_personal: ClassVar[bool] = True

    adapted_part: Literal["head", "all"] = hyper(
        "head",
        "part of the model in which a client mixes its own parameters with the shared ones, the rest being "
        "shared; head, the last layer, is fast and usually enough; all can adapt more",
        symbol="p",
    )
    # Paper: in the second round W is trained until it converges. Here: as many steps in every round, because many
    # clients run as one program.
    weight_steps: int = hyper(
        10,
        "steps with which a client learns its mixing weights in a round; more fit them better, and cost time; "
        "10 stands in for the paper's training until they change no more",
        least=1,
        search=OneOf((1, 10)),
    )
    weight_rate: float = hyper(
        1.0,
        "size of the steps of the mixing weights, which lie between 0 and 1; larger decides faster between "
        "own and shared parameters; 1 is the paper's",
        symbol="η",
        above=0,
        search=LogUniform(0.1, 10.0),
    )

    def batches_per_round(self) -> int:
        return self.weight_steps + self.local_steps

    def batches_at_end(self) -> int:
        return self.weight_steps

    def init_client(self, params: Params, contexts: int) -> ClientState:
        state = super().init_client(params, contexts)
        return state._replace(personal=tree.map(torch.clone, params), weights=tree.map(torch.ones_like, params))

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        shared = broadcast.params
        start, weights = self.aggregate(problem, shared, state, [batches[s] for s in range(self.weight_steps)])
        steps = LocalSteps.begin(problem, start, state.moments)
        for r in range(self.local_steps):
            steps = self.local_step(problem, broadcast, steps, batches, self.weight_steps + r)
        upload = steps.upload()
        moved = tree.map(lambda total, a, b: total + (a - b), upload.update, start, shared)  # θ_i − Θ
        new = state._replace(personal=steps.params, weights=weights, moments=steps.moments)
        return upload._replace(update=moved), new

    def aggregate(
        self, problem: Problem, shared: Params, state: ClientState, batches: list[Batch]
    ) -> tuple[Params, Params]:
        """θ̂_i and W_i, by steps W ← clip(W − η ∇_θ̂ L ⊙ (Θ − θ_i)) (Eq. 5)."""
        names = frozenset(shared) if self.adapted_part == "all" else names_of(problem.model, "head", shared)
        weights, own = state.weights, state.personal

        def between(weights: Params) -> Params:
            return {n: own[n] + (leaf - own[n]) * weights[n] if n in names else leaf for n, leaf in shared.items()}

        for batch in batches:
            gradient, _ = problem.gradient(erm(problem), between(weights), batch)
            moved = tree.map(
                lambda w, g, a, b: (w - self.weight_rate * g * (a - b)).clamp(0, 1), weights, gradient, shared, own
            )
            weights = {name: moved[name] if name in names else leaf for name, leaf in weights.items()}
        return between(weights), weights

    def personal(self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches) -> Params:
        return self.aggregate(problem, broadcast.params, state, [batches[s] for s in range(self.weight_steps)])[0]
