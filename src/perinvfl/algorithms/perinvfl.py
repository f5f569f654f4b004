"""PerInvFL: Tang, Guo & Zhang, Exploiting Personalized Invariance for Better Out-of-distribution Generalization in
Federated Learning, Algorithm 1, with L_INV = IRM (objectives per-irm, glob-irm) or GroupDRO."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from perinvfl.algorithms.base import Broadcast, ClientState, Number, Personal, Upload, Walk, erm
from perinvfl.algorithms.groupdro import GroupWeighted, weighted_contexts
from perinvfl.algorithms.irm import Penalized
from perinvfl.core import optimizers, tree
from perinvfl.core.hyper import LogUniform, hyper
from perinvfl.core.tree import Params
from perinvfl.errors import UserError
from perinvfl.learning import risks
from perinvfl.learning.problem import Batches, Descent, FeatureObjective, Objective, Problem


@dataclass(frozen=True)
class PerInvFL(Personal, Penalized, GroupWeighted):
    """A global invariant model ν over clients, and at each client a personal model θ_i that is invariant over the
    client's own contexts and stays near ν."""

    title: ClassVar[str] = "PerInvFL"
    paper: ClassVar[str] = "Tang, Guo & Zhang 2022"

    invariance: Literal["irm", "groupdro"] = hyper(
        "irm", "the invariant loss, over clients and over contexts", symbol="L_INV"
    )
    beta: float | tuple[float, ...] = hyper(
        1.0,
        "pull of θ_i towards ν; a list gives each client its own (Remark 1; docs/theory.md measures it)",
        symbol="β",
        least=0,
        search=LogUniform(1e-2, 1e5),
    )

    personal_after: int = hyper(
        0, "rounds that θ_i begins anew at ν, before it goes its own way", least=0, stacks=True, later=True
    )

    personal_part: Literal["all", "features", "head"] = hyper(
        "all", "what of the model is personal, the rest being ν's; the head is the last layer", later=True
    )

    def batches_per_round(self) -> int:
        return self.local_steps * (self.personal_steps + 1)

    def init_client(self, params: Params, contexts: int) -> ClientState:
        q = next(iter(params.values())).new_full((contexts,), 1 / contexts)
        state = super().init_client(params, contexts)
        return state._replace(weights={**state.weights, "q": q})

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        if self.invariance == "groupdro" and problem.over_contexts:
            broadcast = self.weigh_contexts(problem, broadcast, state, batches.data)
        beta: Number = self.beta  # type: ignore[assignment]  # of a list, an executor gives each client its own
        scale = self.personal_scale(broadcast)
        rate = self.personal_rate(broadcast.round, self.personal_after)
        how = Descent(self.personal_optimizer, rate, self.l2 / scale, 2 * beta / scale)
        theta, theta_moments, q = state.personal, state.personal_moments, state.weights["q"]
        if not (isinstance(self.personal_after, int) and self.personal_after == 0):
            early = torch.as_tensor(broadcast.round <= self.personal_after)
            theta = tree.map(lambda t, v: torch.where(early, v, t), theta, broadcast.params)
            theta_moments = optimizers.forget(theta_moments, early)
        walk = Walk.begin(problem, broadcast.params, state.moments)  # ν_{i,0} ← ν^t                            l. 5
        batch = 0
        for _ in range(self.local_steps):
            nu = walk.params()  # ν_{i,r}
            for _ in range(self.personal_steps):
                theta = self.with_shared_part(problem, theta, nu)
                objective = self.personal_objective(problem, broadcast, q)
                theta, theta_moments, q = problem.descend(  # θ ← θ − η(∇L_INV + 2β(θ − ν_{i,r}))              l. 8
                    objective, theta, batches[batch], how, theta_moments, anchor=nu
                )
                batch += 1
            walk = self.local_step(problem, broadcast, walk, batches, batch)  # ν_{i,r+1}                       l. 10
            batch += 1
        upload, state = (
            walk.upload(),
            state._replace(
                personal=theta, personal_moments=theta_moments, moments=walk.moments, weights={**state.weights, "q": q}
            ),
        )
        if self.invariance == "groupdro" and problem.over_contexts:
            return self.raise_shares(problem, upload, state, batches.data)
        return upload, state

    def personal(self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches) -> Params:
        return self.with_shared_part(problem, state.personal, broadcast.params)

    def with_shared_part(self, problem: Problem, theta: Params, nu: Params) -> Params:
        """θ_i with what is not personal taken from ν."""
        if self.personal_part == "all":
            return theta
        if not problem.model.head:
            raise UserError(f'personal_part = "{self.personal_part}": this model does not say which layer is its last.')
        own_head = self.personal_part == "head"
        return {name: leaf if (name in problem.model.head) == own_head else nu[name] for name, leaf in theta.items()}

    def personal_scale(self, broadcast: Broadcast) -> float | Tensor:
        """What the whole personal loss, the pull included, is divided by: a smaller step, not another objective."""
        return self.loss_scale(broadcast.round)

    def personal_objective(self, problem: Problem, broadcast: Broadcast, q: Tensor) -> Objective | FeatureObjective:
        """L_INV(θ_i; E_train^i) over the client's own K_i contexts; tells q, raised if L_INV is GroupDRO."""
        if self.invariance == "groupdro":
            return self._local_groupdro(problem, q)
        loss = self.invariant(problem, broadcast.round, contexts=True).value
        return FeatureObjective(lambda *seen: (loss(*seen)[0], q))

    def _local_groupdro(self, problem: Problem, q: Tensor) -> Objective:
        def objective(logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
            member = problem.members(context)
            present = (member.sum(0) > 0).float()
            context_risks = risks.context_means(risks.losses(problem.task, logits, y), member)
            raised = risks.raise_weights(q, context_risks, present, self.group_step)
            # Contexts that are not in the batch keep their weight, so those that are share what they had together.
            kept = torch.where(present > 0, raised * (q * present).sum(), q)
            return (raised * context_risks).sum(), kept

        return objective

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> Objective | FeatureObjective:
        """L_INV(ν; E^D): each client's data as a whole is one environment."""
        if self.invariance == "groupdro" and problem.over_contexts:
            return weighted_contexts(problem, broadcast.weight)
        if self.invariance == "groupdro":
            return erm(problem, broadcast.weight)
        return self.invariant(problem, broadcast.round, contexts=problem.over_contexts)

    def objective_changes(self, last: Number, now: Number) -> bool | Tensor:
        return False if self.invariance == "groupdro" else super().objective_changes(last, now)

    def loss_scale(self, round: float | Tensor) -> float | Tensor:
        return 1.0 if self.invariance == "groupdro" else super().loss_scale(round)

    def global_cooling(self) -> Number:
        """ν is at rest when θ_i goes its own way, if it ever does so late."""
        after = self.personal_after
        return torch.where(after > 0, after, self.cooling) if isinstance(after, Tensor) else after or self.cooling

    def check(self, where: str) -> None:
        if 0 < self.cooling <= self.personal_after:
            raise UserError(
                f"{where}.cooling = {self.cooling} leaves the personal model no step: it must be more than "
                f"personal_after = {self.personal_after}."
            )
        divided = self.rescale and self.warmup_rounds == 0 and self.invariance == "irm"
        scale = max(1.0, self.penalty_weight) if divided else 1.0
        self.check_pull(where, "beta", self.beta, factor=2.0, scale=scale)
