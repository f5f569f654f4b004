"""The reference model and what each client then notes alone: which of its samples that model gets wrong.

A phase of FedAvg, so what leaves a client is what leaves it in FedAvg.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms.fedavg import FedAvg
from perinvfl.data.federation import Federation, Split
from perinvfl.data.images import without_middle
from perinvfl.learning.shortcut import is_wrong, soft_shares, split_context
from perinvfl.learning.training import Training
from perinvfl.preparation.phases import Notes, Predict
from perinvfl.preparation.settings import ContextSettings

RIGHT, WRONG = "validation right", "validation wrong"
CONTEXT, HELD_OUT_WRONG = "context", "held_out_wrong"  # the names of the notes
PADDING = {CONTEXT: -1, HELD_OUT_WRONG: False}


def reference_algorithm(settings: ContextSettings) -> FedAvg:
    return FedAvg(
        learning_rate=1.0,
        server_optimizer="adam",
        server_learning_rate=settings.reference_rate,
        cooling=settings.reference_rounds if settings.reference_cooling else 0,
    )


def reference_training(settings: ContextSettings, training: Training) -> Training:
    return dataclasses.replace(training, rounds=settings.reference_rounds, at_rest="memory", compile=False)


def reference_view(settings: ContextSettings, federation: Federation, notes: Notes) -> Federation:
    """What the reference model is trained on."""
    return bare(shown(settings, federation))


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
    """Training contexts split by where the reference model errs, and which held-out samples it gets wrong."""
    seen = shown(settings, own)
    logits, train = predict(seen.train.x[0]), own.train
    if settings.infer == "soft":
        context = torch.full(train.context.shape, -1.0)
        real = train.context[0] >= 0
        context[0, real] = soft_shares(own.task, logits[real], train.y[0, real], settings.soft_steps)
    else:
        context = split_context(train.context, is_wrong(own.task, logits, train.y[0])[None])
    wrong = torch.zeros((1, 0), dtype=torch.bool)
    if own.validation is not None and seen.validation is not None:
        wrong = is_wrong(own.task, predict(seen.validation.x[0]), own.validation.y[0])[None]
    return {**notes, CONTEXT: context, HELD_OUT_WRONG: wrong}


def note_errors_again(own: Federation, notes: Notes, seen: Federation, predict: Predict) -> Notes:
    """Training contexts split anew by the global model of the time, on the data as the last phase sees them."""
    wrong = is_wrong(own.task, predict(seen.train.x[0]), own.train.y[0])
    return {**notes, CONTEXT: split_context(own.train.context, wrong[None])}


def inferred_view(settings: ContextSettings, federation: Federation, notes: Notes) -> Federation:
    """The data with training contexts as noted, and held-out data sorted."""
    return dataclasses.replace(
        federation,
        train=federation.train._replace(context=notes[CONTEXT]),
        contexts=2 * federation.contexts if settings.use == "balance" else federation.contexts,
        split=settings.use,
        even_classes=settings.even_classes,
        inferred=_sorted_validation(settings, federation, notes[HELD_OUT_WRONG]),
    )


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
    for row in notes[CONTEXT]:
        real = row[row >= 0]
        shares.append(float((real if real.is_floating_point() else (real % 2).float()).mean()))
    return {"reference": {"wrong": [round(share, 4) for share in shares]}}
