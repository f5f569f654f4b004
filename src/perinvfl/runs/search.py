"""Random search over the ranges declared on an algorithm's fields, and which trials can run as one program."""

import dataclasses
import random

from perinvfl.algorithms.base import Algorithm
from perinvfl.core import hyper
from perinvfl.engine.executors import varying_fields
from perinvfl.errors import UserError
from perinvfl.runs.experiment import Experiment
from perinvfl.runs.facts import Purpose
from perinvfl.runs.trial import Trial


def search(experiment: Experiment, trials: int, search_seed: int, purpose: Purpose | None = None) -> Experiment:
    """For each algorithm of the file, that many settings; the same settings for each of the file's seeds.

    purpose: what the record of each says it is made for.
    """
    drawn = []
    for trial in experiment.trials:
        rng = random.Random(f"{search_seed} {trial.label}")
        something_to_draw = hyper.search_space(trial.algorithm, trial.held, dict(trial.ranges))
        for number in range(trials if something_to_draw else 1):
            setting = _draw_until_sane(trial, rng)
            drawn.append(
                dataclasses.replace(
                    trial,
                    algorithm=setting,
                    label=f"{trial.label} #{number}",  # part of the run's id: published runs are found by it
                    method=trial.label,
                    setting=number,
                    purpose=purpose,
                )
            )
    return Experiment(experiment.name, tuple(drawn))


def _draw_until_sane(trial: Trial, rng: random.Random) -> Algorithm:
    for _ in range(1000):
        setting = hyper.draw(trial.algorithm, rng, trial.held, dict(trial.ranges))
        try:
            setting.check(trial.algorithm_name)  # a setting that must diverge is not worth a trial
            return setting
        except UserError as error:
            refused = error
    raise UserError(f"No setting of {trial.label} within the search ranges can work: {refused}")


def batch_trials(trials: tuple[Trial, ...], most: int) -> list[list[Trial]]:
    """Groups whose members differ only in seed and in numbers that enter the arithmetic."""
    groups: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        algorithm = trial.algorithm
        varying = varying_fields(algorithm)
        fixed = tuple(
            (f.name, getattr(algorithm, f.name)) for f in dataclasses.fields(algorithm) if f.name not in varying
        )
        key = (trial.benchmark, trial.data, trial.contexts, trial.model, trial.training, trial.algorithm_name, fixed)
        groups.setdefault((*key, trial.bounds_in_preparation), []).append(trial)
    return [group[first : first + most] for group in groups.values() for first in range(0, len(group), most)]
