"""From data, settings and a model to the problem that clients solve; where it is solved, and how."""

import warnings

import torch
from torch import Tensor

from perinvfl.core.mapped import is_mapped
from perinvfl.core.memory import keep_freed_memory
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.compiling import compiles, pick_descent
from perinvfl.errors import UserError
from perinvfl.learning.direct import batched_gradient, direct_gradient
from perinvfl.learning.problem import Gradient, Problem, functional_gradient
from perinvfl.learning.training import Training
from perinvfl.models import Model, ModelSettings, build_model


def build_problem(
    federation: Federation,
    training: Training,
    model: ModelSettings | Model,
    batched: bool = False,
    padded: bool = False,
) -> Problem:
    """What the clients of a federation, or one of them alone, are given to solve.

    padded: clients run as one program and some have fewer samples than others. One client at a time has no padding.
    """
    if isinstance(model, ModelSettings):
        model = build_model(model, federation.shape, federation.outputs, training.precision)
    padded = padded and training.batch_size == 0  # batches are drawn from real samples only
    check_images(federation, training, model, padded)
    if not batched:
        keep_freed_memory()  # clients that take turns ask for the same again and again
    compiled = compiles(training, batched, model)
    return Problem(
        model=model,
        task=federation.task,
        contexts=federation.contexts,
        paired=training.batch_size > 0,
        padded=padded,
        gradient_of=_pick_gradient(compiled, batched),
        descent=pick_descent(training, batched, model),
        overwrites=not batched and not compiled and model.direct is not None,
        batched=batched and model.batched is not None,
        augmentation=federation.augmentation,
        groups=len(federation.groups),
        split=federation.split,
        even_classes=federation.even_classes,
        classes=federation.classes,
        answers=federation.answers,
    )


def _pick_gradient(compiled: bool, batched: bool) -> Gradient:
    if batched:
        return batched_gradient
    return functional_gradient if compiled else direct_gradient


def check_images(federation: Federation, training: Training, model: Model, padded: bool) -> None:
    if training.batch_size == 0 and federation.augmentation.views > 1:
        raise UserError("data.flip, data.crop and data.middle need mini-batches; set training.batch_size.")
    if padded and model.statistics is not None:
        raise UserError(
            'model.norm = "batch" with clients of different sizes needs training.batch_size above 0, or '
            'training.executor = "loop".'
        )


def check_batch_size(training: Training, largest_fits: bool) -> None:
    """largest_fits: whether a batch fits into the data of the largest client."""
    if not largest_fits:
        raise UserError(
            f"training.batch_size = {training.batch_size}: no client has as many samples; 0 takes all of them."
        )


def place_inputs(x: Tensor, device: torch.device, training: Training) -> Tensor:
    """Inputs where they are trained on. Images at rest are bytes and stay so: the model scales them."""
    arithmetic = torch.bfloat16 if training.precision == "bfloat16" else torch.float32
    # What lies in a file stays there on a CPU: the model converts what it looks at.
    as_is = x.dtype == torch.uint8 or (device.type == "cpu" and is_mapped(x))
    return x.to(device, None if as_is else arithmetic)


def place_split(split: Split, device: torch.device, training: Training) -> Split:
    return Split(place_inputs(split.x, device, training), split.y.to(device), split.context.to(device))


def pick_batched(training: Training, device: torch.device, model: Model) -> bool:
    """Whether all clients run as one program; a model that cannot says so and runs one client after another."""
    wanted = training.executor == "vmap" or (training.executor == "auto" and device.type == "cuda")
    if wanted and model.unmapped:
        warnings.warn(
            f"The model cannot run for many clients at once ({model.unmapped}): training.executor is loop.",
            stacklevel=3,
        )
        return False
    return wanted
