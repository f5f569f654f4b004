"""FedRep: Collins et al., Exploiting Shared Representations for Personalized Federated Learning, 2021, Algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.base import Broadcast, ClientState, LocalSteps, Upload, erm
from perinvfl.algorithms.parts import Part, PartlyPersonal, join, names_of
from perinvfl.algorithms.personal import Personal
from perinvfl.core.hyper import OneOf, hyper
from perinvfl.learning.problem import Batches, Descent, Problem


@dataclass(frozen=True)
class FedRep(PartlyPersonal, Personal):
    """As in FedPer the head h_i is each client's own, but the two parts take turns: first S steps of the head on the
    features φ^t that were sent, then R steps of the features with that head."""

    title: ClassVar[str] = "FedRep"
    paper: ClassVar[str] = "Collins et al. 2021"
    personal_part: ClassVar[Part] = "head"

    personal_steps: int = hyper(
        5,
        "steps of the personal last layer in a round, before the shared layers take theirs; more fit it "
        "better to the features of the round, and cost time; 5 is a compromise",
        symbol="τ_h",
        least=1,
        search=OneOf((1, 5, 10)),
    )

    def batches_per_round(self) -> int:
        return self.personal_steps + self.local_steps

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        model, risks = self.own_model(broadcast, state), []
        head, head_moments = names_of(problem.model, "head", model), state.personal_moments
        how = Descent(self.personal_optimizer, self.personal_rate(broadcast.round), self.l2)
        for s in range(self.personal_steps):  # h ← h − α ∇_h f(h, φ^t)
            moved, head_moments, risk = problem.descend(erm(problem), model, batches[s], how, head_moments)
            model = join(problem.model, "head", moved, model)
            risks.append(risk)
        steps = LocalSteps.begin(problem, model, state.moments).noting_risk(risks[0])
        for r in range(self.local_steps):  # φ ← φ − α ∇_φ f(h, φ)
            steps = self.local_step(problem, broadcast, steps, batches, self.personal_steps + r).holding(head)
        return steps.upload(broadcast.params), state._replace(
            personal=steps.params, personal_moments=head_moments, moments=steps.moments
        )
