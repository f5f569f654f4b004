"""The stage in front of an algorithm, with clients that see alike where they differ by a symmetry of images.

The first client trains a model alone, its shortcut discounted, and sends it to the others; each of them takes the view
of its own images in which that model fits them best. Other than in FedAvg, they see a model of one client.
"""

import dataclasses

import torch
from torch import Tensor

from perinvfl.data.federation import Federation, Split
from perinvfl.engine.simulation import Training
from perinvfl.errors import UserError
from perinvfl.learning import risks
from perinvfl.learning.shortcut import ContextSettings
from perinvfl.models import Model, ModelSettings
from perinvfl.models.symmetry import check_images, seen, views_of
from perinvfl.preparation.reference_model import infer_contexts, predict, train_reference


def prepared(
    federation: Federation, seed: int, settings: ContextSettings, model: ModelSettings | Model, training: Training
) -> Federation:
    """All that `[contexts]` asks for: contexts inferred, and clients aligned."""
    if settings.align == "nothing":
        return infer_contexts(federation, seed, settings, model, training)
    _check(federation, settings, model)
    inferred = infer_contexts(federation, seed, settings, model, training)
    split = dataclasses.replace(inferred, contexts=federation.contexts, split="discount", inferred={}, infer_every=0)
    views = _views(split, seed, settings, model, training)
    return in_views(dataclasses.replace(inferred, notes={**inferred.notes, "views": list(views)}), views)


def in_views(federation: Federation, views: tuple[int, ...]) -> Federation:
    """The same federation, the images of each client in its own view."""
    if not views:
        return federation
    made: dict[int, Tensor] = {}  # tests may share their images, and so may what is held out: they go on doing so

    def turned(data: Split) -> Split:
        if id(data.x) not in made:
            made[id(data.x)] = torch.stack([seen(x, view) for x, view in zip(data.x, views, strict=True)])
        return data._replace(x=made[id(data.x)])

    return dataclasses.replace(
        federation,
        train=turned(federation.train),
        tests={name: turned(data) for name, data in federation.tests.items()},
        validation=federation.validation and turned(federation.validation),
        inferred={name: turned(data) for name, data in federation.inferred.items()},
        views=views,
    )


def _check(federation: Federation, settings: ContextSettings, model: ModelSettings | Model) -> None:
    check_images("contexts.align", settings.align, federation.shape)
    if federation.task != "binary":
        raise UserError("contexts.align takes a binary label.")
    if "left-out" in federation.tests:
        raise UserError("contexts.align: a client that is left out takes no view; leave out data.leave_out.")
    if isinstance(model, ModelSettings) and set(views_of(model.blind_to)) & set(views_of(settings.align)) != {0}:
        raise UserError(f"contexts.align: a model blind to {model.blind_to} sees no difference; choose one.")


def _views(
    federation: Federation, seed: int, settings: ContextSettings, model: ModelSettings | Model, training: Training
) -> tuple[int, ...]:
    """The view in which a model of the first client fits each other client's own images best.

    The shortcut is discounted where the model is trained and where it is judged: what it fits is the rest.
    """
    clients = [Split(*(part[i : i + 1] for part in federation.train)) for i in range(federation.clients)]
    first = dataclasses.replace(
        federation, train=clients[0], augmentation=dataclasses.replace(federation.augmentation, middle=())
    )
    how = dataclasses.replace(training, batch_size=min(training.batch_size, int(first.sizes[0])))
    pilot = train_reference(first, seed, settings, model, how)

    def misfit(data: Split, view: int) -> float:
        logits = predict(pilot, data._replace(x=seen(data.x, view)))[0]
        offset = pilot.problem.batches(Split(*(part[0] for part in data)), None)[0].offset
        assert offset is not None  # it is what discounting means
        losses = risks.losses("binary", logits + offset[:, None], data.y[0])
        return float(risks.context_means(losses, risks.whole(data.context[0])))

    best = [min(views_of(settings.align), key=lambda view: misfit(data, view)) for data in clients[1:]]
    return (0, *best)
