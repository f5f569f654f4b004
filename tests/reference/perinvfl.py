"""Algorithm 1 and its ablation."""

import math
from typing import Any

from torch import Tensor

from tests.reference.invariant import IRM, GroupDRO, GroupDROContexts, IRMContexts
from tests.reference.losses import context_risks, irm_loss, risk
from tests.reference.networks import descend, distance_squared, norm_squared
from tests.reference.personalized import Personalized
from tests.reference.samples import Batch, Samples


class PerInvFLBase(Personalized):
    """Algorithm 1. What L_INV is, subclasses say."""

    def client(self, i: int, batch: Batch) -> float:
        first, step = 0.0, 0
        for r in range(self.set.local_steps):
            for _ in range(self.set.personal_steps):
                descend(self.theta_optimizer[i], self.personal_loss(i, batch(step)))  # l. 8
                step += 1
            if r == 0:
                first = self.first_risk(i, batch(step))
            descend(self.local_optimizer[i], self.global_loss(i, batch(step)))  # l. 10
            step += 1
        return first

    def pulls(self, i: int) -> Tensor:
        """β‖θ − ν_{i,r}‖² and the l2 term."""
        near = self.own("beta", i) * distance_squared(self.theta[i], self.local[i])
        return near + self.set.l2 * norm_squared(self.theta[i])

    def personal_loss(self, i: int, batch: Samples) -> Tensor:
        raise TypeError("a subclass says what L_INV is")


class PerInvFLIRM(PerInvFLBase, IRM):
    def personal_loss(self, i: int, batch: Samples) -> Tensor:
        loss = irm_loss(self.task, self.theta[i], batch, self.weight(), self.paired, by_context=True)
        return (loss + self.pulls(i)) / self.divisor()

    def forget(self) -> None:
        super().forget()
        self.theta_optimizer = [self.new_theta_optimizer(i) for i in range(self.clients)]


class IRML2(PerInvFLIRM):
    """The paper's ablation: the personal loss is the plain risk + β‖θ − ν‖²; no λ in it, so nothing to divide by."""

    def personal_loss(self, i: int, batch: Samples) -> Tensor:
        return risk(self.task, self.theta[i], batch) + self.pulls(i)


class PerInvFLGroupDRO(PerInvFLBase, GroupDRO):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        own = [sorted(set(share.context.tolist())) for share in self.samples]
        self.local_q = [{context: 1 / len(contexts) for context in contexts} for contexts in own]

    def personal_loss(self, i: int, batch: Samples) -> Tensor:
        """Σ_j q_j R_j over the contexts in the batch, q raised first. An absent context's odds do not change."""
        q, risks = self.local_q[i], context_risks(self.task, self.theta[i], batch)
        before = sum(q[context] for context in risks)
        raised = {context: q[context] * math.exp(self.set.group_step * r.item()) for context, r in risks.items()}
        shares = {context: value / sum(raised.values()) for context, value in raised.items()}
        for context, share in shares.items():
            q[context] = share * before
        return sum((shares[context] * r for context, r in risks.items()), self.pulls(i))


class PerInvFLIRMContexts(PerInvFLIRM, IRMContexts):
    """Over inferred contexts, ν's loss as well as θ_i's."""


class PerInvFLGroupDROContexts(GroupDROContexts, PerInvFLGroupDRO):
    """Likewise."""
