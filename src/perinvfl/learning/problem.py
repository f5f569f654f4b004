"""What an algorithm may ask of one client's data: predictions, and the gradient of an objective."""

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from perinvfl.core import optimizers, tree
from perinvfl.core.tree import Params
from perinvfl.data.federation import ContextUse, Split, Task
from perinvfl.data.images import AS_IT_IS, Augmentation, augmented
from perinvfl.learning import risks, shortcut
from perinvfl.models import Model

Number = float | Tensor
# (logits, y, context) -> (what is minimised, aux: what else it found)
Objective = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


# (logits, y, context) -> what an objective knows of itself, so that no tape is needed: its slope in the logits
# [B, outputs], or its aux
Known = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class SlopedObjective:
    """An objective of the logits that knows its slope."""

    value: Objective
    slope: Known
    aux: Known

    def __call__(self, logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        return self.value(logits, y, context)

    def telling(self, aux: Tensor) -> "SlopedObjective":
        """The same with another aux."""
        value = self.value
        return SlopedObjective(lambda *seen: (value(*seen)[0], aux), self.slope, lambda *seen: aux)


@dataclass(frozen=True)
class FeatureObjective:
    """An objective that looks at the features before the last layer as well: (features, logits, y, context)."""

    value: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    slope: Known | None = None  # only where the features have no part in the value
    aux: Known | None = None  # where there is a slope

    def telling(self, aux: Tensor) -> "FeatureObjective":
        """The same with another aux."""
        value = self.value
        return FeatureObjective(lambda *seen: (value(*seen)[0], aux), self.slope, lambda *seen: aux)


class Batch(NamedTuple):
    """What one step looks at."""

    x: Tensor  # [B, ...]
    y: Tensor  # [B]
    context: Tensor  # [B]
    offset: Tensor | None = None  # [B, outputs] log-odds that an inferred shortcut already accounts for


# (model, objective, params, batch) -> (gradient, the objective's aux)
Gradient = Callable[[Model, Objective | FeatureObjective, Params, Batch], tuple[Params, Tensor]]


@dataclass(frozen=True)
class Batches:
    """One client's batches of one round: places in its data, [steps, B], or all of its data at every step.

    Where images are augmented, a place is that of the sample plus the number of samples times the number of the view.
    """

    data: Split
    indices: Tensor | None
    augmentation: Augmentation = AS_IT_IS
    split: ContextUse = "given"
    even_classes: bool = False
    classes: int = 2
    answers: int = 0  # of what is discounted; 0: as many as classes

    def __getitem__(self, step: int) -> Batch:
        x, y, context = self._drawn(step)
        if self.split == "given" and not self.even_classes:
            return Batch(x, y, context)
        offset = self._known.offset(y, context)
        if self.split in ("discount", "judge"):
            context = shortcut.given_context(context, (self.answers or self.classes) if self.split == "discount" else 2)
        return Batch(x, y, context, offset)

    def _drawn(self, step: int) -> Split:
        if self.indices is None:
            return self.data
        places, samples = self.indices[step], self.data.y.shape[0]
        if self.augmentation.views == 1:
            x, y, context = self.data
            return Split(x.index_select(0, places), y.index_select(0, places), context.index_select(0, places))
        places, view = places % samples, places // samples
        x = augmented(self.data.x, places, view, self.augmentation)
        return Split(x, *(part.index_select(0, places) for part in self.data[1:]))

    @cached_property
    def _known(self) -> shortcut.Known:
        discount = self.split == "discount"
        return shortcut.known(self.data.y, self.data.context, discount, self.even_classes, self.classes, self.answers)


def autograd_gradient(
    model: Model, objective: Objective | FeatureObjective, params: Params, batch: Batch
) -> tuple[Params, Tensor]:
    """For one client at a time: the ordinary tape, which costs least per call."""
    variables = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    with torch.enable_grad():
        value, aux = _value(model, objective, variables, batch)
    gradients = torch.autograd.grad(value, list(variables.values()))
    return dict(zip(variables, gradients, strict=True)), aux.detach()


def functional_gradient(
    model: Model, objective: Objective | FeatureObjective, params: Params, batch: Batch
) -> tuple[Params, Tensor]:
    """For use under vmap, and inside a compiled program."""
    return torch.func.grad(lambda p: _value(model, objective, p, batch), has_aux=True)(params)


@dataclass(frozen=True)
class Descent:
    """How a step goes down an objective."""

    kind: optimizers.Kind
    rate: Number
    l2: Number = 0.0  # weight of ‖params‖²
    pull: Number = 0.0  # weight of half the squared distance to an anchor


def divided(weight: Number, scale: Number) -> Number:
    """weight / scale; of nothing, nothing: a plain 0 costs no pass over the parameters."""
    return 0.0 if isinstance(weight, float) and weight == 0 else weight / scale


class Step(NamedTuple):
    """What a step comes to."""

    params: Params  # or the sum of the steps so far
    moments: optimizers.Moments
    aux: Tensor  # what the objective found besides its value


def descend(
    gradient_of: Gradient,
    model: Model,
    objective: Objective | FeatureObjective,
    params: Params,
    batch: Batch,
    how: Descent,
    moments: optimizers.Moments,
    anchor: Params | None,
    total: Params | None,
    overwrite: bool,
) -> Step:
    """See `Problem.descend`. One function, so that it can be compiled as one."""
    at = tree.map(torch.add, params, total) if total else params
    # Compiled, a plain step folds its size into the loss: matrix products then add straight onto the parameters.
    folded = torch.compiler.is_compiling() and how.kind == "sgd"
    factor = -how.rate if folded else 1.0
    gradient, aux = gradient_of(model, _times(objective, factor) if folded else objective, at, batch)
    if not (isinstance(how.l2, float) and how.l2 == 0):
        decay = factor * 2 * how.l2
        gradient = tree.map(lambda g, p: g + decay * p, gradient, at)
    if anchor is not None:
        pull = factor * how.pull
        gradient = tree.map(lambda g, p, a: g + pull * (p - a), gradient, at, anchor)
    base = params if total is None else total
    if folded:
        return Step(tree.map(torch.add, base, gradient) if base else gradient, moments, aux)
    new, moments = optimizers.step(how.kind, base, gradient, moments, how.rate, overwrite)
    return Step(new, moments, aux)


def _times(objective: Objective | FeatureObjective, factor: Number) -> Objective | FeatureObjective:
    def scaled(result: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return factor * result[0], result[1]

    if isinstance(objective, FeatureObjective):
        value = objective.value
        return FeatureObjective(lambda *seen: scaled(value(*seen)))
    return lambda *seen: scaled(objective(*seen))


def compiled_descent() -> Callable[..., Step]:
    """For one client at a time, gradient and update as one compiled program: faster on small batches.

    A function of its own for each simulation: the compiler keeps only a few programs of one function.
    """
    own = types.FunctionType(descend.__code__.replace(), descend.__globals__, descend.__name__)
    return torch.compile(own, dynamic=False)


def _value(
    model: Model, objective: Objective | FeatureObjective, params: Params, batch: Batch
) -> tuple[Tensor, Tensor]:
    features = model.features(params, batch.x)
    logits = model.classify(params, features)
    if batch.offset is not None:
        logits = logits + batch.offset
    if isinstance(objective, FeatureObjective):
        return objective.value(features, logits, batch.y, batch.context)
    return objective(logits, batch.y, batch.context)


@dataclass(frozen=True)
class Problem:
    model: Model
    task: Task
    contexts: int  # K
    paired: bool  # mini-batches: use the unbiased penalty
    padded: bool  # some batch may hold samples that are only padding
    gradient_of: Gradient
    augmentation: Augmentation = AS_IT_IS
    groups: int = 0  # (class, context) pairs of the tests to count right answers of
    split: ContextUse = "given"
    even_classes: bool = False
    classes: int = 2
    answers: int = 0  # of what is discounted; 0: as many as classes
    descent: Callable[..., Step] = descend
    overwrites: bool = False  # whether gradients are memory of their own, in which a step may write what it comes to
    batched: bool = False  # whether the passes through the model are written out for many models at once

    @property
    def over_contexts(self) -> bool:
        """Whether the global loss, too, runs over a client's contexts: where they were inferred to be balanced."""
        return self.split == "balance"

    @property
    def compiled(self) -> bool:
        """Whether a step is a compiled program."""
        return self.descent is not descend

    def logits(self, params: Params, x: Tensor) -> Tensor:
        """[B, outputs] what a model says."""
        if self.batched and self.model.batched is not None:
            return self.model.batched.forward(params, x)[0]
        if self.model.direct is not None and not torch.is_grad_enabled():
            return self.model.direct(params, x)[1]  # its products by the faster library
        return self.model.apply(params, x)

    def batches(self, data: Split, indices: Tensor | None) -> Batches:
        return Batches(data, indices, self.augmentation, self.split, self.even_classes, self.classes, self.answers)

    def members(self, context: Tensor) -> Tensor:
        """[B, K] how far each sample belongs to each of the client's contexts."""
        return risks.membership(context, self.contexts)

    def whole(self, context: Tensor) -> Tensor | None:
        """Membership in D_i as a whole; None where every sample is real."""
        return risks.whole(context, self.padded)

    def value(self, objective: Objective | FeatureObjective, params: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        """The objective at params on the batch, and its aux."""
        return _value(self.model, objective, params, batch)

    def descend(
        self,
        objective: Objective | FeatureObjective,
        params: Params,
        batch: Batch,
        how: Descent,
        moments: optimizers.Moments,
        anchor: Params | None = None,
        total: Params | None = None,
    ) -> Step:
        """params − rate · (∇objective + 2 l2 · params + pull · (params − anchor)), or Adam's step along that.

        total: the sum of the steps taken from params so far, {} before the first; the step is taken from params + total
        and what comes back is the new sum. A difference of two models would round small steps away.
        """
        return self.descent(
            self.gradient_of, self.model, objective, params, batch, how, moments, anchor, total, self.overwrites
        )

    def gradient(self, objective: Objective | FeatureObjective, params: Params, batch: Batch) -> tuple[Params, Tensor]:
        """Gradient of the objective at params on the batch, and the objective's aux."""
        return self.gradient_of(self.model, objective, params, batch)
