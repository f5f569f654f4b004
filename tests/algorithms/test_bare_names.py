"""Every algorithm with no setting at all does better than a constant answer in its own training contexts."""

import dataclasses
from typing import Any, Literal

import pytest

from perinvfl.algorithms import ALGORITHMS
from perinvfl.core import config
from perinvfl.data.constant import constant_fit
from perinvfl.data.registry import BENCHMARKS, build_federation
from perinvfl.engine.evaluation import training_scores
from perinvfl.engine.program_run import ProgramRun
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.preparation.program import program_of
from perinvfl.preparation.settings import ContextSettings
from perinvfl.runs.fit import Fit

DATA: dict[str, tuple[str, dict[str, Any], ModelSettings, Training]] = {
    "digits": (
        "rc_mnist",
        {"p_train": (0.95, 0.9, 0.85), "train_per_client": 60, "test_per_client": 10},
        ModelSettings(hidden=(16,)),
        Training(rounds=70),
    ),
    "table": (
        "planted",
        {"p_train": ((0.95, 0.85),) * 3, "rows": 80, "test_rows": 10},
        ModelSettings(hidden=(16,)),
        Training(rounds=70),
    ),
    "birds": (
        "drawn_birds",
        {"train_per_client": 24, "test_per_client": 4, "size": 16, "birds": 40, "backgrounds": 100, "left_over": 0},
        ModelSettings(kind="resnet18", stem="small", width=4),
        Training(rounds=15, batch_size=8),
    ),
}
SLOW = {"pfedme": 3}  # a hundred steps in a round: fewer rounds


def learned(name: str, data: str, executor: Literal["vmap", "loop"]) -> Fit:
    benchmark, settings, model, training = DATA[data]
    federation = build_federation(benchmark, config.build(BENCHMARKS[benchmark].settings, settings, "data"), 0)
    rounds = min(SLOW.get(name, training.rounds), training.rounds // 5) if name in SLOW else training.rounds
    training = dataclasses.replace(training, rounds=rounds, executor=executor, device="cpu")
    algorithm = ALGORITHMS[name]()
    run = ProgramRun(program_of(algorithm, training, ContextSettings()), [algorithm], {0: federation}, [0], model)
    while run.rounds_done < rounds:
        run.round()
    return Fit(float(training_scores(run.simulation).mean()), constant_fit(federation), regression=False)


@pytest.mark.parametrize("data", ["digits", "table"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"fedbn"}))  # a perceptron has no norm layers
def test_a_bare_name_learns(name: str, executor: Literal["vmap", "loop"], data: str) -> None:
    assert learned(name, data, executor).better


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_bare_name_learns_pictures(name: str, executor: Literal["vmap", "loop"]) -> None:
    assert learned(name, "birds", executor).better
