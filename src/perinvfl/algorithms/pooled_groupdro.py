"""GroupDRO on all data in one place: Sagawa et al., Distributionally Robust Neural Networks, 2020, Algorithm 1, each
client a group."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.base import Broadcast, ClientState, Upload
from perinvfl.algorithms.local_steps import LocalSteps
from perinvfl.algorithms.pooled import Pooled, by_context, mean_risk
from perinvfl.core.hyper import LogUniform, hyper
from perinvfl.core.tree import Params
from perinvfl.learning import risks
from perinvfl.learning.problem import Batches, Descent, Objective, Problem


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
        steps, q = LocalSteps.begin(problem, broadcast.params, state.moments), state.weights["q"]
        how = Descent(self.optimizer, self.learning_rate, self.l2)
        for r in range(self.local_steps):
            steps = steps.descend(problem, self.raising(problem, q), batches[r], how)  # ν ← ν − γ Σ q_g ∇R_g
            if r == 0:
                steps = steps.noting_risk(steps.aux[-1])
            q = steps.aux[:-1]
        return steps.upload(), state._replace(weights={"q": q}, moments=steps.moments)

    def raising(self, problem: Problem, q: Tensor) -> Objective:
        """Σ_g q_g R_g after q_g ← q_g exp(η_q R_g), Σ q_g = 1; its aux is the new q and the mean loss."""

        def objective(logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
            member, group_risks, _ = by_context(problem, logits, y, context)
            present = (member.sum(0) > 0).float()
            raised = risks.raise_weights(q, group_risks, present, self.group_step)
            new = risks.with_absent(q, raised, present)
            return (new * group_risks).sum(), torch.cat([new, mean_risk(problem, logits, y, context)[None]])

        return objective
