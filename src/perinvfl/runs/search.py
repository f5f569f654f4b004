"""Random search over the ranges declared on an algorithm's fields, and which trials can run as one program."""

import dataclasses
import random
from typing import Any

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


def batch_trials(trials: tuple[Trial, ...], most: int, join_folds: bool = False) -> list[list[Trial]]:
    """Groups whose members differ only in seed and in numbers that enter the arithmetic.

    join_folds: and in the client that is left out, where nothing is prepared. Folds have images of their own, which
    takes memory; what it saves is that a GPU is kept busy.
    """
    groups: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        algorithm = trial.algorithm
        varying = varying_fields(algorithm)
        fixed = tuple(
            (f.name, getattr(algorithm, f.name)) for f in dataclasses.fields(algorithm) if f.name not in varying
        )
        data = _whichever_is_left_out(trial) if join_folds else trial.data
        key = (trial.benchmark, data, trial.contexts, trial.model, trial.training, trial.algorithm_name, fixed)
        groups.setdefault((*key, trial.bounds_in_preparation), []).append(trial)
    return [group[first : first + most] for group in groups.values() for first in range(0, len(group), most)]


def _whichever_is_left_out(trial: Trial) -> Any:
    """The data settings, the same for all folds that fit into one program."""
    left_out = getattr(trial.data, "leave_out", -1)
    numbered = isinstance(left_out, int) and left_out >= 0
    if numbered and getattr(trial.data, "folds_alike", False) and not trial.program().preparation:
        return dataclasses.replace(trial.data, leave_out=0)
    return trial.data
