"""The reference model and what each client then notes alone: which of its samples that model gets wrong.

A phase of FedAvg, so what leaves a client is what leaves it in FedAvg.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.fedavg import FedAvg
from perinvfl.data.federation import Federation, Split
from perinvfl.data.images import without_middle
from perinvfl.learning.shortcut import answers, error, soft_shares, split_context
from perinvfl.learning.training import Training
from perinvfl.preparation.phases import Notes, Predict
from perinvfl.preparation.settings import ContextSettings
from perinvfl.preparation.twins import Twins, in_halves, never_seen

RIGHT, WRONG = "validation right", "validation wrong"
# The names of the notes: how the reference model errs in each training sample (or EIIL's share), and where it does in
# held-out ones.
ERRORS, HELD_OUT_WRONG = "errors", "held_out_wrong"
PADDING = {ERRORS: -1, HELD_OUT_WRONG: False}


def reference_algorithm(settings: ContextSettings, asked: Algorithm) -> FedAvg:
    """asked: what the reference model is made for, which bounds what one client can do to either."""
    return (Twins if settings.infer == "xrm" else FedAvg)(
        learning_rate=1.0,
        server_optimizer="adam",
        server_learning_rate=settings.reference_rate,
        cooling=settings.reference_rounds if settings.reference_cooling else 0,
        trimming=asked.trimming,
        clipping=asked.clipping,
    )


def reference_training(settings: ContextSettings, training: Training) -> Training:
    return dataclasses.replace(training, rounds=settings.reference_rounds, at_rest="memory", compile=False)


def reference_view(settings: ContextSettings, federation: Federation, notes: Notes) -> Federation:
    """What the reference model is trained on."""
    seen = bare(shown(settings, federation))
    return in_halves(seen) if settings.infer == "xrm" else seen


def bare(federation: Federation) -> Federation:
    """Training data alone."""
    return dataclasses.replace(federation, tests={}, validation=None, inferred={}, groups=())


def shown(settings: ContextSettings, federation: Federation) -> Federation:
    """What the reference model is shown: borders where they belong, and the middle only if it may see it."""
    augmentation = dataclasses.replace(federation.augmentation, middle=())
    federation = dataclasses.replace(federation, augmentation=augmentation, even_classes=settings.even_classes)
    if not settings.hide_middle:
        return federation

    def hidden(data: Split) -> Split:
        return data._replace(x=without_middle(data.x, settings.hide_middle))

    held_out = federation.validation and hidden(federation.validation)
    return dataclasses.replace(federation, train=hidden(federation.train), validation=held_out)


def note_errors(settings: ContextSettings, own: Federation, notes: Notes, client: int, predict: Predict) -> Notes:
    """How the reference model errs in training samples, and which held-out samples it gets wrong."""
    seen = shown(settings, own)
    logits, train = predict(seen.train.x[0]), own.train
    if settings.infer == "soft":
        errors = torch.full(train.context.shape, -1.0)
        real = train.context[0] >= 0
        errors[0, real] = soft_shares(own.task, logits[real], train.y[0, real], settings.soft_steps)
    else:
        errors = _errors(own, never_seen(logits) if settings.infer == "xrm" else logits)
    wrong = torch.zeros((1, 0), dtype=torch.bool)
    if own.validation is not None and seen.validation is not None:
        logits = predict(seen.validation.x[0])
        if settings.infer == "xrm":  # which neither twin has learned
            logits = torch.stack(logits.chunk(2, 1)).mean(0)
        wrong = (answers(own.task, logits) != own.validation.y[0])[None]
    return {**notes, ERRORS: errors, HELD_OUT_WRONG: wrong}


def _errors(own: Federation, logits: Tensor) -> Tensor:
    """[1, M] how far off a model's answers to one client's training samples are; -1 where there is no sample."""
    found = error(answers(own.task, logits), own.train.y[0], own.classes)[None]
    return torch.where(own.train.context >= 0, found, -1)


def note_errors_again(own: Federation, notes: Notes, seen: Federation, predict: Predict) -> Notes:
    """How the global model of the time errs, on the data as the last phase sees them."""
    return {**notes, ERRORS: _errors(own, predict(seen.train.x[0]))}


def inferred_view(settings: ContextSettings, federation: Federation, notes: Notes) -> Federation:
    """The data with training contexts split as noted, and held-out data sorted."""
    return dataclasses.replace(
        federation,
        train=federation.train._replace(context=_split(settings, federation, notes[ERRORS])),
        contexts=2 * federation.contexts if settings.use == "balance" else federation.contexts,
        split=settings.use,
        even_classes=settings.even_classes,
        inferred=_sorted_validation(settings, federation, notes[HELD_OUT_WRONG]),
    )


def _split(settings: ContextSettings, federation: Federation, errors: Tensor) -> Tensor:
    """Training contexts: by what the reference model said where it is discounted, else by whether it was right."""
    given = federation.train.context
    if settings.infer == "soft":
        return errors
    if settings.use == "discount":
        return split_context(given, errors, federation.classes)
    return split_context(given, errors > 0)


def _sorted_validation(settings: ContextSettings, federation: Federation, wrong: Tensor) -> dict[str, Split]:
    """Held-out data as tests that share their inputs: where the reference model is right, and where it is wrong.

    Each class by itself where classes count alike: else a constant that names the common one would look good in both.
    """
    held_out = federation.validation
    if held_out is None:
        return {}
    sides = [~wrong, wrong]
    if settings.even_classes:
        sides = [side & (held_out.y == c) for side in sides for c in (0, 1)]
    real = held_out.context >= 0
    return {
        name: held_out._replace(context=torch.where(real & side, held_out.context, -1))
        for name, side in zip(sorted_names(settings), sides, strict=True)
    }


def sorted_names(settings: ContextSettings) -> list[str]:
    """What the sorted held-out data are called."""
    if not settings.even_classes:
        return [RIGHT, WRONG]
    return [f"{name}, class {c}" for name in (RIGHT, WRONG) for c in (0, 1)]


def wrong_shares(notes: Notes) -> dict[str, Any]:
    """The share of a client's training samples that the reference model gets wrong: one number per client."""
    shares = []
    for row in notes[ERRORS]:
        real = row[row >= 0]
        shares.append(float((real if real.is_floating_point() else (real > 0).float()).mean()))
    return {"reference": {"wrong": [round(share, 4) for share in shares]}}
