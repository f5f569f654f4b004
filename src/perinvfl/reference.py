"""The stage in front of an algorithm: FedAvg for a few rounds, then each client splits its own data by that model.

Where clients are known to differ by a symmetry of images, each then takes the view in which it sees what the first one
sees. For that the first client sends a model that it trained alone.

What leaves a client is what leaves it in FedAvg. The stage is a function of the data, the seed and the settings, so a
run that is resumed infers the same contexts again.
"""

import dataclasses

import torch
from torch import Tensor

from perinvfl import risks
from perinvfl.algorithms.fedavg import FedAvg
from perinvfl.contexts import ContextSettings, is_wrong, soft_shares, split_context
from perinvfl.errors import UserError
from perinvfl.federation import Federation, Split
from perinvfl.images import without_middle
from perinvfl.models import Model, ModelSettings
from perinvfl.models.symmetry import check_images, seen, views_of
from perinvfl.simulate import Simulation, Training

RIGHT, WRONG = "validation right", "validation wrong"


def infer_contexts(
    federation: Federation, seed: int, settings: ContextSettings, model: ModelSettings | Model, training: Training
) -> Federation:
    """The same federation with training contexts split and held-out data sorted by a reference model."""
    if federation.task == "regression":
        raise UserError("contexts.infer: a regression has no right and wrong answers to split samples by.")
    if settings.use == "discount" and federation.task != "binary":
        raise UserError('contexts.use = "discount" takes a binary label; use = "balance" takes any.')
    if settings.infer == "soft" and federation.contexts > 1:
        raise UserError('contexts.infer = "soft" splits clients that have one context each; use "hard".')
    if settings.even_classes and federation.task != "binary":
        raise UserError("contexts.even_classes takes a binary label.")
    if settings.align != "nothing":
        check_images("contexts.align", settings.align, federation.shape)
        if federation.task != "binary":
            raise UserError("contexts.align takes a binary label.")
        if "left-out" in federation.tests:
            raise UserError("contexts.align: a client that is left out takes no view; leave out data.leave_out.")
        if isinstance(model, ModelSettings) and set(views_of(model.blind_to)) & set(views_of(settings.align)) != {0}:
            raise UserError(f"contexts.align: a model blind to {model.blind_to} sees no difference; choose one.")
    federation = dataclasses.replace(federation, even_classes=settings.even_classes)
    shown = _shown(federation, settings)
    simulation = train_reference(shown, seed, settings, model, training)
    train = federation.train
    logits = _predict(simulation, shown.train)
    if settings.infer == "soft":
        context = torch.full(train.context.shape, -1.0)
        for i, real in enumerate(train.context >= 0):
            context[i, real] = soft_shares(federation.task, logits[i, real], train.y[i, real], settings.soft_steps)
        wrong_shares = [float(row[row >= 0].mean()) for row in context]
    else:
        wrong = is_wrong(federation.task, logits, train.y)
        context = split_context(train.context, wrong)
        wrong_shares = [float((row[row >= 0] % 2).float().mean()) for row in context]
    inferred = dataclasses.replace(
        federation,
        train=train._replace(context=context),
        contexts=2 * federation.contexts if settings.use == "balance" else federation.contexts,
        split=settings.use,
        inferred=_sorted_validation(simulation, federation, shown.validation),
        infer_every=settings.every,
        notes={**federation.notes, "reference": {"wrong": [round(share, 4) for share in wrong_shares]}},
    )
    if settings.align == "nothing":
        return inferred
    views = _views(dataclasses.replace(inferred, contexts=federation.contexts), seed, settings, model, training)
    return in_views(dataclasses.replace(inferred, notes={**inferred.notes, "views": list(views)}), views)


def in_views(federation: Federation, views: tuple[int, ...]) -> Federation:
    """The same federation, the images of each client in its own view."""
    if not views:
        return federation

    made: dict[int, Tensor] = {}  # tests may share their images, and go on doing so

    def turned(data: Split) -> Split:
        if id(data.x) not in made:
            made[id(data.x)] = torch.stack([seen(x, view) for x, view in zip(data.x, views, strict=True)])
        return data._replace(x=made[id(data.x)])

    held_out = federation.validation and turned(federation.validation)
    return dataclasses.replace(
        federation,
        train=turned(federation.train),
        tests={name: turned(data) for name, data in federation.tests.items()},
        validation=held_out,
        inferred={name: data._replace(x=held_out.x) for name, data in federation.inferred.items() if held_out},
        views=views,
    )


def _views(
    federation: Federation, seed: int, settings: ContextSettings, model: ModelSettings | Model, training: Training
) -> tuple[int, ...]:
    """The view in which a model of the first client fits each other client's own images best.

    That model is trained with the shortcut discounted, and judged so: what it fits is the rest.
    """
    discounted = dataclasses.replace(
        _shown(federation, ContextSettings()), split="discount", inferred={}, infer_every=0
    )
    clients = [Split(*(part[i : i + 1] for part in federation.train)) for i in range(federation.clients)]
    batch = min(training.batch_size, int((clients[0].context >= 0).sum()))
    how = dataclasses.replace(training, batch_size=batch)
    pilot = train_reference(dataclasses.replace(discounted, train=clients[0]), seed, settings, model, how)

    def misfit(data: Split, view: int) -> float:
        logits = _predict(pilot, data._replace(x=seen(data.x, view)))[0]
        offset = pilot.problem.batches(Split(data.x[0], data.y[0], data.context[0]), None)[0].offset
        assert offset is not None  # it is what discounting means
        losses = risks.losses("binary", logits + offset[:, None], data.y[0])
        return float(risks.context_means(losses, risks.whole(data.context[0])))

    best = [min(views_of(settings.align), key=lambda view: misfit(data, view)) for data in clients[1:]]
    return (0, *best)


def _shown(federation: Federation, settings: ContextSettings) -> Federation:
    """What the reference model is shown: borders where they belong, and the middle only if it may see it."""
    augmentation = dataclasses.replace(federation.augmentation, middle=())
    federation = dataclasses.replace(federation, augmentation=augmentation)
    if not settings.hide_middle:
        return federation
    if len(federation.shape) != 3:
        raise UserError("contexts.hide_middle takes images; these data have no middle.")

    def hidden(data: Split) -> Split:
        return data._replace(x=without_middle(data.x, settings.hide_middle))

    held_out = federation.validation and hidden(federation.validation)
    return dataclasses.replace(federation, train=hidden(federation.train), validation=held_out)


def train_reference(
    federation: Federation, seed: int, settings: ContextSettings, model: ModelSettings | Model, training: Training
) -> Simulation:
    how = dataclasses.replace(training, rounds=settings.reference_rounds, at_rest="memory", compile=False)
    algorithm = FedAvg(
        learning_rate=1.0,
        server_optimizer="adam",
        server_learning_rate=settings.reference_rate,
        cooling=settings.reference_rounds if settings.reference_cooling else 0,
    )
    bare = dataclasses.replace(federation, tests={}, validation=None, groups=())
    simulation = Simulation([algorithm], [bare], [seed], how, model)
    for _ in range(settings.reference_rounds):
        simulation.round()
    return simulation


def _sorted_validation(simulation: Simulation, federation: Federation, shown: Split | None) -> dict[str, Split]:
    """Held-out data as tests that share their inputs: where the reference model is right, and where it is wrong.

    Each class by itself where classes count alike: else a constant that names the common one would look good in both.
    """
    held_out = federation.validation
    if held_out is None or shown is None:
        return {}
    wrong = is_wrong(federation.task, _predict(simulation, shown), held_out.y)
    sides = {RIGHT: ~wrong, WRONG: wrong}
    if federation.even_classes:
        sides = {f"{name}, class {c}": side & (held_out.y == c) for name, side in sides.items() for c in (0, 1)}
    real = held_out.context >= 0
    return {
        name: held_out._replace(context=torch.where(real & side, held_out.context, -1)) for name, side in sides.items()
    }


def _predict(simulation: Simulation, data: Split) -> Tensor:
    """[N, M, outputs] logits of the reference model."""
    models = simulation._global_for(simulation.everyone)
    x = data.x.to(simulation.device, simulation.data.x.dtype)
    return simulation.executor.predict(models, x[None])[0].cpu()
