"""PerInvFL: Tang, Guo & Zhang, Exploiting Personalized Invariance for Better Out-of-distribution Generalization in
Federated Learning, Algorithm 1, with L_INV = IRM (objectives per-irm, glob-irm) or GroupDRO.

As published; `perinvfl_options` composes what was added beyond the paper around it.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from perinvfl.algorithms.base import Broadcast, ClientState, LocalSteps, Number, Upload, erm
from perinvfl.algorithms.groupdro import GroupWeighted, local_groupdro
from perinvfl.algorithms.irm import Penalized
from perinvfl.algorithms.personal import Personal
from perinvfl.core.hyper import LogUniform, hyper
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Batch, Batches, Descent, FeatureObjective, Objective, Problem, Step, divided


@dataclass(frozen=True)
class Algorithm1(Personal, Penalized, GroupWeighted):
    """A global invariant model ν over clients, and at each client a personal model θᵢ that is invariant over the
    client's own contexts and stays near ν."""

    invariance: Literal["irm", "groupdro"] = hyper(
        "irm",
        "loss by which models become invariant, the shared one over clients and a personal one over its "
        "client's contexts: irm, the default, adds a penalty to the risk; groupdro gives more weight to where "
        "the risk is largest",
        symbol="L_INV",
    )
    beta: float | tuple[float, ...] = hyper(
        1.0,
        "strength of the pull of a personal model towards the shared one; a larger one helps where a client "
        "has few contexts (Remark 1; measured in docs/theory.md); 0 trains it on its own, 1 is a moderate "
        "pull; a list gives each client its own",
        symbol="β",
        least=0,
        search=LogUniform(1e-2, 1e5),
    )

    def batches_per_round(self) -> int:
        return self.local_steps * (self.personal_steps + 1)

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        theta, theta_moments, q = state.personal, state.personal_moments, state.weights["q"]
        steps = LocalSteps.begin(problem, broadcast.params, state.moments)  # ν_{i,0} ← ν^t                     l. 5
        batch = 0
        for _ in range(self.local_steps):
            nu = steps.params  # ν_{i,r}
            for _ in range(self.personal_steps):
                at = state._replace(personal=theta, personal_moments=theta_moments, weights={**state.weights, "q": q})
                theta, theta_moments, q = self.personal_step(problem, broadcast, at, batches[batch], nu)
                batch += 1
            steps = self.local_step(problem, broadcast, steps, batches, batch)  # ν_{i,r+1}                     l. 10
            batch += 1
        weights = {**state.weights, "q": q}
        return steps.upload(), state._replace(
            personal=theta, personal_moments=theta_moments, moments=steps.moments, weights=weights
        )

    def personal_step(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batch: Batch, nu: Params
    ) -> Step:
        """θ ← θ − η(∇L_INV + 2β(θ − ν_{i,r})); its aux is the client's q.                                      l. 8"""
        beta: Number = self.beta  # type: ignore[assignment]  # of a list, an executor gives each client its own
        scale = self.personal_scale(broadcast)
        how = Descent(self.personal_optimizer, self.eta(broadcast.round), divided(self.l2, scale), 2 * beta / scale)
        objective = self.personal_objective(problem, broadcast, state.weights["q"])
        return problem.descend(objective, state.personal, batch, how, state.personal_moments, anchor=nu)

    def eta(self, round: Number) -> Number:
        return self.personal_rate(round)

    def personal_scale(self, broadcast: Broadcast) -> float | Tensor:
        """What the whole personal loss, the pull included, is divided by: a smaller step, not another objective."""
        return self.loss_scale(broadcast.round)

    def personal_objective(self, problem: Problem, broadcast: Broadcast, q: Tensor) -> Objective | FeatureObjective:
        """L_INV(θ_i; E_train^i) over the client's own K_i contexts; its aux is q, raised if L_INV is GroupDRO."""
        if self.invariance == "groupdro":
            return local_groupdro(problem, q, self.group_step)
        return self.invariant(problem, broadcast.round, contexts=True).telling(q)

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> Objective | FeatureObjective:
        """L_INV(ν; E^D): each client's data as a whole is one environment."""
        if self.invariance == "groupdro":
            return erm(problem, broadcast.weight)
        return self.invariant(problem, broadcast.round, contexts=problem.over_contexts)

    # What GroupDRO and IRM need of each other's settings ------------------------------------------------------

    def init_client(self, params: Params, contexts: int) -> ClientState:
        q = next(iter(params.values())).new_full((contexts,), 1 / contexts)
        state = super().init_client(params, contexts)
        return state._replace(weights={**state.weights, "q": q})

    def sees_risks(self) -> bool:
        return self.invariance == "groupdro"

    def objective_changes(self, last: Number, now: Number) -> bool | Tensor:
        return False if self.invariance == "groupdro" else super().objective_changes(last, now)

    def loss_scale(self, round: float | Tensor) -> float | Tensor:
        return 1.0 if self.invariance == "groupdro" else super().loss_scale(round)

    def check(self, where: str) -> None:
        super().check(where)
        divided = self.rescale and self.warmup_rounds == 0 and self.invariance == "irm"
        scale = max(1.0, self.penalty_weight) if divided else 1.0
        self.check_pull(where, "beta", self.beta, factor=2.0, scale=scale)
