"""The stage in front of an algorithm: FedAvg for a few rounds, then each client splits its own data by that model.

What leaves a client is what leaves it in FedAvg. The stage is a function of the data, the seed and the settings, so a
run that is resumed infers the same contexts again.
"""

import dataclasses

import torch
from torch import Tensor

from perinvfl.algorithms.fedavg import FedAvg
from perinvfl.data.federation import Federation, Split
from perinvfl.data.images import without_middle
from perinvfl.engine.simulation import Simulation, Training
from perinvfl.errors import UserError
from perinvfl.learning.shortcut import ContextSettings, is_wrong, soft_shares, split_context
from perinvfl.models import Model, ModelSettings

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
    federation = dataclasses.replace(federation, even_classes=settings.even_classes)
    shown = _shown(federation, settings)
    simulation = train_reference(shown, seed, settings, model, training)
    train = federation.train
    logits = predict(simulation, shown.train)
    if settings.infer == "soft":
        context = torch.full(train.context.shape, -1.0)
        for i, real in enumerate(train.context >= 0):
            context[i, real] = soft_shares(federation.task, logits[i, real], train.y[i, real], settings.soft_steps)
        wrong_shares = [float(row[row >= 0].mean()) for row in context]
    else:
        wrong = is_wrong(federation.task, logits, train.y)
        context = split_context(train.context, wrong)
        wrong_shares = [float((row[row >= 0] % 2).float().mean()) for row in context]
    return dataclasses.replace(
        federation,
        train=train._replace(context=context),
        contexts=2 * federation.contexts if settings.use == "balance" else federation.contexts,
        split=settings.use,
        inferred=_sorted_validation(simulation, federation, shown.validation),
        infer_every=settings.every,
        notes={**federation.notes, "reference": {"wrong": [round(share, 4) for share in wrong_shares]}},
    )


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
    wrong = is_wrong(federation.task, predict(simulation, shown), held_out.y)
    sides = {RIGHT: ~wrong, WRONG: wrong}
    if federation.even_classes:
        sides = {f"{name}, class {c}": side & (held_out.y == c) for name, side in sides.items() for c in (0, 1)}
    real = held_out.context >= 0
    return {
        name: held_out._replace(context=torch.where(real & side, held_out.context, -1)) for name, side in sides.items()
    }


def predict(simulation: Simulation, data: Split) -> Tensor:
    """[N, M, outputs] logits of the reference model."""
    models = simulation._global_for(simulation.everyone)
    x = data.x.to(simulation.device, simulation.data.x.dtype)
    return simulation.executor.predict(models, x[None])[0].cpu()
