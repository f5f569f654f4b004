"""The inverse of `Trial.asked`: from what is on record, the trial that asks for the same."""

import copy
from collections.abc import Sequence
from typing import Any

from perinvfl.errors import UserError
from perinvfl.runs.experiment import apply_override, build_experiment
from perinvfl.runs.trial import Trial


def trial_of(
    asked: dict[str, Any],
    *,
    seed: int | None = None,
    label: str | None = None,
    data: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> Trial:
    """The trial that was asked for; with another seed or label, and other settings of data and training, where given.

    overrides: as in `--set`, such as "model.width=64".

    Its method, setting and purpose are not part of what was asked: `dataclasses.replace` adds them.
    """
    try:
        table = copy.deepcopy({key: value for key, value in asked.items() if key != "seed"})
        table["data"] = asked["data"] | (data or {})
        table["training"] = asked["training"] | (training or {})
        table["algorithm"] = [asked["algorithm"] | ({} if label is None else {"label": label})]
        table["seeds"] = [asked["seed"] if seed is None else seed]
        for override in overrides:
            apply_override(table, override)
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            "The settings on record are not those of a run: data, training or algorithm is missing."
        ) from None
    trials = build_experiment(table).trials
    if len(trials) != 1:
        raise UserError("The settings on record are those of several runs.")
    return trials[0]
