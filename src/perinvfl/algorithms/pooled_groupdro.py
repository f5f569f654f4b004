"""GroupDRO on all data in one place: Sagawa et al., Distributionally Robust Neural Networks, 2020, Algorithm 1, each
client a group."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.base import Broadcast, ClientState, Upload, erm
from perinvfl.algorithms.groupdro import weighted_contexts
from perinvfl.algorithms.local_steps import LocalSteps
from perinvfl.algorithms.pooled import Pooled, by_context
from perinvfl.core.hyper import LogUniform, hyper
from perinvfl.core.tree import Params
from perinvfl.learning import risks
from perinvfl.learning.problem import Batch, Batches, Descent, Problem


@dataclass(frozen=True)
class PooledGroupDRO(Pooled):
    """Σ_g q_g R_g, with q raised at every step by the risks of the batch."""

    title: ClassVar[str] = "GroupDRO, pooled"
    paper: ClassVar[str] = "Sagawa et al. 2020"

    group_step: float = hyper(
        0.01,
        "size of the steps of the groups' weights, which grow with a group's risk so that the worst-served "
        "group counts most; larger turns to it faster; 0 keeps all weights equal, 0.01 shifts them slowly",
        symbol="η_q",
        least=0,
        search=LogUniform(1e-3, 1.0),
    )

    def init_client(self, params: Params, contexts: int) -> ClientState:
        q = next(iter(params.values())).new_full((contexts,), 1 / contexts)
        return super().init_client(params, contexts)._replace(weights={"q": q})

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        steps = LocalSteps.begin(problem, broadcast.params, state.moments)
        steps = steps.noting_risk(problem.value(erm(problem), broadcast.params, batches[0])[1])
        how, q = Descent(self.optimizer, self.learning_rate, self.l2), state.weights["q"]
        for r in range(self.local_steps):
            q = self.raised(problem, steps.params, batches[r], q)  # q_g ← q_g exp(η_q R_g), Σ q_g = 1
            steps = steps.descend(problem, weighted_contexts(problem, q), batches[r], how)  # ν ← ν − γ Σ q_g ∇R_g
        return steps.upload(), state._replace(weights={"q": q}, moments=steps.moments)

    def raised(self, problem: Problem, nu: Params, batch: Batch, q: Tensor) -> Tensor:
        """Groups that are not in the batch keep their weight, so those that are share what they had together."""

        def objective(logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
            member, group_risks, _ = by_context(problem, logits, y, context)
            return group_risks.sum(), torch.stack([group_risks, (member.sum(0) > 0).float()])

        group_risks, present = problem.value(objective, nu, batch)[1]
        own = risks.raise_weights(q, group_risks, present, self.group_step)
        return torch.where(present > 0, own * (q * present).sum(), q)
