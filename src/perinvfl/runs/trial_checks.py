"""What cannot work is refused before training: settings of data, model and algorithm that do not go together."""

import dataclasses

from perinvfl.algorithms.irm import Penalized
from perinvfl.core import hyper
from perinvfl.errors import UserError
from perinvfl.runs.trial import Trial


def check_trials(trials: list[Trial]) -> None:
    _check_clients(trials)
    _check_labels(trials)
    _check_batches(trials)
    _check_contexts(trials)
    _check_parts(trials)


def _check_clients(trials: list[Trial]) -> None:
    for trial in trials:
        clients = trial.data.clients
        options = {key: range_.options for key, range_ in trial.ranges if isinstance(range_, hyper.OneOf)}
        for field in dataclasses.fields(trial.algorithm):
            for value in (getattr(trial.algorithm, field.name), *options.get(field.name, ())):
                if isinstance(value, tuple) and len(value) != clients:
                    raise UserError(
                        f"{trial.algorithm_name}.{field.name} lists {len(value)} values for {clients} clients; "
                        "give one number for all, or one per client."
                    )


def _check_batches(trials: list[Trial]) -> None:
    for trial in trials:
        if trial.training.batch_size == 1 and isinstance(trial.algorithm, Penalized):
            raise UserError(
                f"training.batch_size = 1: the penalty of {trial.label} compares two halves of a batch; at least 2."
            )


def _check_contexts(trials: list[Trial]) -> None:
    for trial in trials:
        balanced = trial.contexts.infer != "given" and trial.contexts.use == "balance"
        if balanced and not trial.algorithm.uses_contexts:
            raise UserError(
                f'contexts.use = "balance": {trial.label} has no loss over contexts; use "discount" or "judge".'
            )


def _check_parts(trials: list[Trial]) -> None:
    """A model that cannot be split as an algorithm asks; one of the user's own is looked at when it is built."""
    for trial in trials:
        part, kind = getattr(trial.algorithm, "personal_part", "all"), trial.model.kind
        if part == "norms" and kind in ("linear", "mlp"):
            raise UserError(
                f'{trial.label} keeps the norm layers of a model at each client, and model.kind = "{kind}" has none; '
                f'use model.kind = "resnet18" or a module of your own, or leave {trial.label} out.'
            )
        if part in ("head", "features") and (kind == "linear" or (kind == "mlp" and not trial.model.hidden)):
            raise UserError(
                f"{trial.label} keeps a part of the model at each client, its last layer or all before it, and this "
                f"model has one layer; add a hidden layer, such as model.hidden = [16], or leave {trial.label} out."
            )


def _check_labels(trials: list[Trial]) -> None:
    seen = set()
    for trial in trials:
        named = trial.title, trial.seed
        if named in seen:
            raise UserError(f'Two algorithms are called "{trial.label}"; give one of them another label.')
        seen.add(named)
