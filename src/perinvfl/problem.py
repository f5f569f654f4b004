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
Gradient = Callable[[Callable[[Params], tuple[Tensor, Tensor]], Params], tuple[Params, Tensor]]


@dataclass(frozen=True)
class Batches:
    """One client's batches of one round: places in its data, [steps, B], or all of its data at every step."""

    data: Split
    places: Tensor | None

    def __getitem__(self, step: int) -> Split:
        if self.places is None:
            return self.data
        return Split(*(part.index_select(0, self.places[step]) for part in self.data))


def autograd_gradient(f: Callable[[Params], tuple[Tensor, Tensor]], params: Params) -> tuple[Params, Tensor]:
    """For one client at a time: the ordinary tape, which costs least per call."""
    variables = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    with torch.enable_grad():
        value, told = f(variables)
    gradients = torch.autograd.grad(value, list(variables.values()))
    return dict(zip(variables, gradients, strict=True)), told.detach()


def functional_gradient(f: Callable[[Params], tuple[Tensor, Tensor]], params: Params) -> tuple[Params, Tensor]:
    """For use under vmap."""
    return torch.func.grad(f, has_aux=True)(params)


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
        return self.gradient_of(lambda p: objective(self.model.apply(p, batch.x), batch.y, batch.context), params)
