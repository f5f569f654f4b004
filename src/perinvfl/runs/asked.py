"""The inverse of `Trial.asked`: from what is on record, the trial that asks for the same."""

from typing import Any

from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.trial import Trial


def trial_of(
    asked: dict[str, Any],
    *,
    seed: int | None = None,
    label: str | None = None,
    data: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
) -> Trial:
    """The trial that was asked for; with another seed or label, and other settings of data and training, where given.

    Its method, setting and purpose are not part of what was asked: `dataclasses.replace` adds them.
    """
    table = {key: value for key, value in asked.items() if key != "seed"}
    table["data"] = asked["data"] | (data or {})
    table["training"] = asked["training"] | (training or {})
    table["algorithm"] = [asked["algorithm"] | ({} if label is None else {"label": label})]
    table["seeds"] = [asked["seed"] if seed is None else seed]
    (trial,) = build_experiment(table).trials
    return trial
