"""What an algorithm may ask of one client's data: predictions, and the gradient of an objective."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl import risks
from perinvfl.federation import Augmentation, Split, Task
from perinvfl.models import Model
from perinvfl.tree import Params

# (logits, y, context) -> (what is minimised, what is told about it)
Objective = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
# (model, objective, params, batch) -> (gradient, what the objective tells)
Gradient = Callable[[Model, Objective, Params, Split], tuple[Params, Tensor]]


@dataclass(frozen=True)
class Batches:
    """One client's batches of one round: places in its data, [steps, B], or all of its data at every step.

    Where images are augmented, a place is that of the sample plus the number of samples times the number of the view.
    """

    data: Split
    places: Tensor | None
    augmentation: Augmentation = Augmentation()

    def __getitem__(self, step: int) -> Split:
        if self.places is None:
            return self.data
        places, samples = self.places[step], self.data.y.shape[0]
        if self.augmentation.views == 1:
            return Split(*(part.index_select(0, places) for part in self.data))
        places, view = places % samples, places // samples
        x = augmented(self.data.x, places, view, self.augmentation)
        return Split(x, *(part.index_select(0, places) for part in self.data[1:]))


def augmented(images: Tensor, places: Tensor, view: Tensor, augmentation: Augmentation) -> Tensor:
    """[B, C, H, W], channels last in memory: the images at these places, each in the view of its number."""
    reach = augmentation.crop
    span = 2 * reach + 1
    down, right, mirrored = view % span, view // span % span, view // span**2 == 1

    def lines(shift: Tensor, size: int) -> Tensor:  # [B, size] which line is shown where
        line = torch.arange(size, device=images.device) + (shift - reach)[:, None]
        return size - 1 - (size - 1 - line.abs()).abs()  # mirrored at both edges

    rows, columns = lines(down, images.shape[-2]), lines(right, images.shape[-1])
    columns = torch.where(mirrored[:, None], images.shape[-1] - 1 - columns, columns)
    shown = images[places[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # [B, H, W, C]
    return shown.permute(0, 3, 1, 2)


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
    augmentation: Augmentation = Augmentation()
    groups: int = 0  # (class, context) pairs of the tests to count right answers of

    def batches(self, data: Split, places: Tensor | None) -> Batches:
        return Batches(data, places, self.augmentation)

    def whole(self, context: Tensor) -> Tensor | None:
        """Membership in D_i as a whole; None where every sample is real."""
        return risks.whole(context, self.padded)

    def gradient(self, objective: Objective, params: Params, batch: Split) -> tuple[Params, Tensor]:
        """Gradient of the objective at params on the batch, and what the objective tells."""
        return self.gradient_of(self.model, objective, params, batch)
