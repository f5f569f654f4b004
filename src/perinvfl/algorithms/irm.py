"""Distributed IRM: Arjovsky et al., Invariant Risk Minimization, 2019; each client is an environment (glob-irm)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm, Broadcast, Number, Purpose
from perinvfl.core.hyper import LogUniform, OneOf, hyper
from perinvfl.learning import risks
from perinvfl.learning.penalties import PENALTIES, Penalty, PenaltyInputs
from perinvfl.learning.problem import FeatureObjective, Objective, Problem


@dataclass(frozen=True)
class Penalized(Algorithm):
    """Fields of the methods with an invariance penalty, and its schedule."""

    uses_contexts: ClassVar[bool] = True

    penalty_weight: float = hyper(
        100.0,
        "weight of the invariance penalty against the risk; larger keeps the model from what predicts in some "
        "contexts only; 0 is plain training, too large ends in a constant answer; 100 is a middle value, and "
        "the best depends on the data",
        symbol="λ",
        least=0,
        search=LogUniform(10.0, 1e5),
    )
    warmup_rounds: int = hyper(
        50,
        "number of rounds in which the penalty weight is at most 1, so that the model learns something before "
        "it must be invariant; without them a large penalty ends in a constant answer; 50 is half of the "
        "default number of rounds",
        least=0,
        stacks=True,
        search=OneOf((0, 30, 60, 100)),
    )
    invariant_by: Penalty = hyper(
        "irm",
        "which penalty measures how far the model is from being invariant, since each sees another trace of a "
        "shortcut: irm (the paper's) compares gradients of contexts, v-rex their risks, fishr the variance of "
        "their gradients, decoupling keeps answers cautious, ib-irm adds to irm that features vary little",
        later=True,
    )
    rescale: bool = hyper(
        True,
        "divide the whole loss by the penalty weight where that is above 1, so that a large weight does not "
        "also enlarge the steps; true is what IRM's authors do, false leaves the loss as it is",
    )

    def penalty(self, round: Number) -> Number:
        """λ_t."""
        gentle = _least(self.penalty_weight, 1.0)
        return _choose(round >= self.warmup_rounds, self.penalty_weight, gentle)

    def loss_scale(self, round: Number) -> Number:
        if not self.rescale:
            return 1.0
        weight = self.penalty(round)
        return weight.clamp(min=1.0) if isinstance(weight, Tensor) else max(weight, 1.0)

    def objective_changes(self, last: Number, now: Number) -> bool | Tensor:
        if isinstance(self.warmup_rounds, int) and self.warmup_rounds == 0:
            return False
        changed = (last < self.warmup_rounds) & (now >= self.warmup_rounds)
        return changed if isinstance(now, Tensor) else bool(changed)

    def invariant(self, problem: Problem, round: Number, contexts: bool) -> FeatureObjective:
        """(Σ_j R_j + λ_t · penalty) / scale over the client's own contexts j, or over all of D_i as one context.

        With IRM's penalty: Σ_j R_j + λ ‖∇_w R_j(w·f)‖². Its aux is the mean loss over all samples, R(ν; D_i).
        """
        weight, scale, penalty = self.penalty(round), self.loss_scale(round), PENALTIES[self.invariant_by]

        def objective(features: Tensor, logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
            sample_losses = risks.losses(problem.task, logits, y)
            member = problem.members(context) if contexts else problem.whole(context)
            context_risks = risks.context_means(sample_losses, member)
            seen = PenaltyInputs(problem.task, features, logits, y, member, problem.paired)
            risk = risks.context_means(sample_losses, problem.whole(context)) if contexts else context_risks
            return (context_risks.sum() + weight * penalty(seen)) / scale, risk[0]

        def slope(logits: Tensor, y: Tensor, context: Tensor) -> Tensor:
            member = problem.members(context) if contexts else None
            return risks.binary_irm_slope(logits, y, member, problem.paired, weight, scale)

        known = problem.task == "binary" and self.invariant_by == "irm" and not problem.padded
        return FeatureObjective(objective, slope, risks.binary_risk) if known else FeatureObjective(objective)


@dataclass(frozen=True)
class IRM(Penalized):
    """One global model under IRMv1 with each client an environment."""

    title: ClassVar[str] = "IRM"
    paper: ClassVar[str] = "Arjovsky et al. 2019"
    purpose: ClassVar[Purpose] = "shift"

    def global_objective(self, problem: Problem, broadcast: Broadcast) -> Objective | FeatureObjective:
        return self.invariant(problem, broadcast.round, contexts=problem.over_contexts)


def _least(a: Number, b: float) -> Number:
    return a.clamp(max=b) if isinstance(a, Tensor) else min(a, b)


def _choose(condition: bool | Tensor, yes: Number, no: Number) -> Number:
    """`no` is at least 0 and at most `yes`."""
    if not isinstance(condition, Tensor):
        return yes if condition else no
    if isinstance(yes, Tensor) or isinstance(no, Tensor):
        return torch.where(condition, yes, no)
    return yes if yes == no else (condition * yes).clamp(min=no)  # on a GPU fewer kernels than `where` of two numbers
