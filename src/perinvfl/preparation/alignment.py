"""Clients that see alike, where they differ by a symmetry of images.

A phase in which the first client trains alone, its shortcut discounted; then every other client takes the view of its
own images in which that model fits them best. Unlike in FedAvg, the others see a model of one client.
"""

import dataclasses

import torch
from torch import Tensor

from perinvfl.data.federation import Federation, Split
from perinvfl.learning import risks
from perinvfl.learning.shortcut import known, split_context
from perinvfl.models.symmetry import Symmetry, seen, views_of
from perinvfl.preparation.inferred_contexts import ERRORS, bare, inferred_view
from perinvfl.preparation.phases import Notes, Predict
from perinvfl.preparation.settings import ContextSettings

VIEW = "view"  # the name of the note


def pilot_view(settings: ContextSettings, federation: Federation, notes: Notes) -> Federation:
    """What the first client trains on: its shortcut discounted."""
    inferred = inferred_view(settings, federation, notes)
    augmentation = dataclasses.replace(federation.augmentation, middle=())
    train = inferred.train._replace(context=_by_answers(federation, notes))
    return bare(
        dataclasses.replace(
            inferred, train=train, contexts=federation.contexts, split="discount", augmentation=augmentation
        )
    )


def _by_answers(federation: Federation, notes: Notes) -> Tensor:
    return split_context(federation.train.context, notes[ERRORS], federation.classes)


def note_view(settings: ContextSettings, own: Federation, notes: Notes, client: int, predict: Predict) -> Notes:
    """The view in which the model of the first client fits this client's images best; the first keeps its own.

    The shortcut is discounted where the model is trained and where it is judged: what it fits is the rest.
    """
    data = Split(own.train.x[0], own.train.y[0], _by_answers(own, notes)[0])
    labels = data.y, data.context
    offset = known(*labels, True, settings.even_classes, own.classes).offset(*labels)
    best = 0 if client == 0 else best_view(settings.align, data, offset, predict)
    return {**notes, VIEW: torch.tensor([best])}


def best_view(align: Symmetry, data: Split, offset: Tensor | None, predict: Predict) -> int:
    """The way to see one client's images in which a model fits them best, log-odds known already taken into account."""

    def misfit(view: int) -> float:
        logits = predict(seen(data.x, view))
        losses = risks.losses("binary", logits if offset is None else logits + offset, data.y)
        return float(risks.context_means(losses, risks.whole(data.context)))

    return min(views_of(align), key=misfit)


def in_views(federation: Federation, views: tuple[int, ...]) -> Federation:
    """The same federation, the images of each client in its own view."""
    if not views:
        return federation

    def turned(x: Tensor) -> Tensor:
        return torch.stack([seen(own, view) for own, view in zip(x, views, strict=True)])

    return federation.with_inputs(turned, views=views)


def views_noted(notes: Notes) -> tuple[int, ...]:
    return tuple(notes[VIEW].tolist()) if VIEW in notes else ()
