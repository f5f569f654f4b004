"""Local steps of the global model, from ν^t to what is uploaded."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from perinvfl.algorithms.messages import Upload
from perinvfl.core import optimizers, tree
from perinvfl.core.optimizers import Moments
from perinvfl.core.tree import Params
from perinvfl.learning.problem import Batch, Descent, FeatureObjective, Number, Objective, Problem, SlopedObjective


@dataclass(frozen=True)
class LocalSteps:
    """Steps under way: `params` is where they have led, `upload()` what is sent in the end.

    Inside, the steps are summed up from ν^t, since a difference of two models would round small steps away. Compiled,
    the model itself is kept, which saves a pass over memory. An algorithm sees neither: it takes steps and asks where
    they have led.
    """

    moments: Moments
    risk: Tensor | None  # R(ν^t; D_i), from the first step
    _origin: Params
    _sum: Params  # of the steps so far; {} before the first
    _reached: Params | None  # compiled: the model, instead of the sum
    _aux: Tensor | None = None  # of the objective, from the last step

    @classmethod
    def begin(cls, problem: Problem, params: Params, moments: Moments) -> "LocalSteps":
        """ν_{i,0} ← ν^t."""
        return cls(moments, None, params, {}, params if problem.compiled else None)

    @property
    def params(self) -> Params:
        """ν_{i,r}."""
        if self._reached is not None:
            return self._reached
        return tree.map(torch.add, self._origin, self._sum) if self._sum else self._origin

    @property
    def aux(self) -> Tensor:
        """What else the objective of the last step found."""
        assert self._aux is not None  # a step was taken
        return self._aux

    def descend(
        self,
        problem: Problem,
        objective: Objective | FeatureObjective,
        batch: Batch,
        how: Descent,
        anchor: Params | None = None,
    ) -> "LocalSteps":
        """One step down an objective; the objective's aux at ν^t is taken for the risk, if none is known yet."""
        if self._reached is not None:
            step = problem.descend(objective, self._reached, batch, how, self.moments, anchor)
            return LocalSteps(step.moments, self._risk_or(step.aux), self._origin, {}, step.params, step.aux)
        if self.risk is not None and isinstance(objective, SlopedObjective | FeatureObjective):
            objective = objective.telling(self.risk)  # known: not computed again
        step = problem.descend(objective, self._origin, batch, how, self.moments, anchor, total=self._sum)
        return LocalSteps(step.moments, self._risk_or(step.aux), self._origin, step.params, None, step.aux)

    def move(self, kind: optimizers.Kind, gradient: Params, rate: Number) -> "LocalSteps":
        """One step along a direction that the algorithm worked out itself."""
        if self._reached is not None:
            reached, moments = optimizers.step(kind, self._reached, gradient, self.moments, rate)
            return replace(self, moments=moments, _reached=reached)
        total, moments = optimizers.step(kind, self._sum, gradient, self.moments, rate)
        return replace(self, moments=moments, _sum=total)

    def holding(self, names: Collection[str]) -> "LocalSteps":
        """With these parameters back where the steps began."""
        if self._reached is not None:
            held = {name: self._origin[name] if name in names else leaf for name, leaf in self._reached.items()}
            return replace(self, _reached=held)
        held = {name: torch.zeros_like(leaf) if name in names else leaf for name, leaf in self._sum.items()}
        return replace(self, _sum=held)

    def unless(self, undone: bool | Tensor, before: "LocalSteps") -> "LocalSteps":
        """These steps, or where it is so, those before: clients of one program that take different numbers of them."""
        was = before._sum or tree.map(torch.zeros_like, self._sum)
        undone = torch.as_tensor(undone)
        return replace(
            self,
            moments=tree.over(lambda new, old: torch.where(undone, old, new), self.moments, before.moments),
            _sum=tree.map(lambda new, old: torch.where(undone, old, new), self._sum, was),
            _reached=None
            if self._reached is None or before._reached is None
            else tree.map(lambda new, old: torch.where(undone, old, new), self._reached, before._reached),
        )

    def noting_risk(self, risk: Tensor) -> "LocalSteps":
        """With R(ν^t; D_i) from elsewhere."""
        return replace(self, risk=risk)

    def upload(self, names: Collection[str] | None = None) -> Upload:
        """What is sent; names: of these parameters alone."""
        assert self.risk is not None  # a step was taken, or the risk was noted
        reached = self._reached
        update = self._sum if reached is None else tree.map(torch.sub, reached, self._origin)
        return Upload(update if names is None else {name: update[name] for name in names}, self.risk)

    def _risk_or(self, aux: Tensor) -> Tensor:
        return aux if self.risk is None else self.risk
