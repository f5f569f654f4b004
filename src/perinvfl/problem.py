"""What an algorithm may ask of one client's data: predictions, and the gradient of an objective."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl import risks
from perinvfl.federation import Split, Task
from perinvfl.models import Model
from perinvfl.tree import Params

# (logits, y, context) -> (what is minimised, what is told about it)
Objective = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
# (model, objective, params, batch) -> (gradient, what the objective tells)
Gradient = Callable[[Model, Objective, Params, Split], tuple[Params, Tensor]]


@dataclass(frozen=True)
class Batches:
    """One client's batches of one round: places in its data, [steps, B], or all of its data at every step."""

    data: Split
    places: Tensor | None

    def __getitem__(self, step: int) -> Split:
        if self.places is None:
            return self.data
        return Split(*(part.index_select(0, self.places[step]) for part in self.data))


def autograd_gradient(model: Model, objective: Objective, params: Params, batch: Split) -> tuple[Params, Tensor]:
    """For one client at a time: the ordinary tape, which costs least per call."""
    variables = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    with torch.enable_grad():
        value, told = objective(model.apply(variables, batch.x), batch.y, batch.context)
    gradients = torch.autograd.grad(value, list(variables.values()))
    return dict(zip(variables, gradients, strict=True)), told.detach()


def functional_gradient(model: Model, objective: Objective, params: Params, batch: Split) -> tuple[Params, Tensor]:
    """For use under vmap."""
    return _differentiate(model.apply, objective, params, *batch)


def compiled_gradient() -> Gradient:
    """For one client at a time, as one compiled program: half the time of a step on a small batch."""
    differentiate = torch.compile(_differentiate, dynamic=False)

    def gradient(model: Model, objective: Objective, params: Params, batch: Split) -> tuple[Params, Tensor]:
        return differentiate(model.apply, objective, params, *batch)

    return gradient


def _differentiate(
    apply: Callable[[Params, Tensor], Tensor], objective: Objective, params: Params, x: Tensor, y: Tensor, c: Tensor
) -> tuple[Params, Tensor]:
    return torch.func.grad(lambda p: objective(apply(p, x), y, c), has_aux=True)(params)


@dataclass(frozen=True)
class Problem:
    model: Model
    task: Task
    contexts: int  # K
    clients: int  # N
    paired: bool  # mini-batches: use the unbiased penalty
    padded: bool  # some batch may hold samples that are only padding
    gradient_of: Gradient

    def whole(self, context: Tensor) -> Tensor | None:
        """Membership in D_i as a whole; None where every sample is real."""
        return risks.whole(context, self.padded)

    def gradient(self, objective: Objective, params: Params, batch: Split) -> tuple[Params, Tensor]:
        """Gradient of the objective at params on the batch, and what the objective tells."""
        return self.gradient_of(self.model, objective, params, batch)
