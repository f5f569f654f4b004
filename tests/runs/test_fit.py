"""What a run says at its end of its models in their own training contexts."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from perinvfl.algorithms import FedAvg
from perinvfl.core import tree
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.data.constant import constant_fit
from perinvfl.engine.evaluation import training_scores
from perinvfl.engine.simulation import Simulation
from perinvfl.runs.event_log import chained
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.fit import Fit, fit_on_record
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import EVENTS, find_runs, read_events, read_run
from perinvfl.runs.train import train
from perinvfl.runs.trial import Trial

EXPLODING = """
name = "exploding"
seeds = [0]
[data]
benchmark = "structural"
clients = 3
samples = 20
holdout = 4
[model]
hidden = [5]
[training]
rounds = 4
evaluate_every = 4
[[algorithm]]
name = "fedavg"
learning_rate = 0.5
"""

RARE = """
name = "rare"
seeds = [0]
[data]
benchmark = "drawn_birds"
train_per_client = 60
test_per_client = 10
birds = 400
backgrounds = 1000
size = 16
[contexts]
even_classes = true
infer = "hard"
use = "judge"
reference_rounds = 1
[model]
kind = "resnet18"
width = 4
stem = "small"
[training]
rounds = 15
batch_size = 20
evaluate_every = 15
[[algorithm]]
name = "fedavg"
server_optimizer = "adam"
learning_rate = 1.0
server_learning_rate = 0.003
"""


def test_models_that_learned_nothing_are_said_to_be_so() -> None:
    said = Fit(0.5, 0.6, regression=False).in_words()
    assert "no better than a constant answer" in said and "50.0%" in said and "60.0%" in said
    assert Fit(1.0, 2.0, regression=True).better and not Fit(2.0, 1.0, regression=True).better


def test_classes_that_count_alike_in_training_do_so_here(tmp_path: Path) -> None:
    """A model that gives up right answers of the frequent class for the rare one has learned something."""
    file, folder = tmp_path / "rare.toml", tmp_path / "out"
    file.write_text(RARE)
    told: list[str] = []

    class Told(Progress):
        def remark(self, trials: list[Trial], words: str) -> None:
            told.append(words)

    train(read_experiment(file), folder, Told())
    (run,) = find_runs(folder)
    end = run.events[-1]["training"]
    assert end["balanced"] and end["constant"] == 0.5
    assert not [text for text in told if "constant answer" in text]
    fit = fit_on_record(run)
    assert fit is not None and fit.better and "class-balanced" in fit.in_words()


def test_a_client_may_have_one_class_alone() -> None:
    """It has nothing to get wrong for the other class."""
    federation = random_federation()
    y = torch.ones_like(federation.train.y)
    y[0, :5] = 0
    federation = dataclasses.replace(federation, train=federation.train._replace(y=y), even_classes=True)
    assert constant_fit(federation, balanced=True) == pytest.approx((0.5 + 1 + 1) / 3)
    simulation = Simulation([FedAvg()], [federation], [0])
    simulation.server = simulation.server._replace(params=tree.map(torch.zeros_like, simulation.server.params))
    simulation.server.params["2.bias"].fill_(1.0)  # always class 1
    assert training_scores(simulation)[0].tolist() == [0.5, 1.0, 1.0]


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_an_error_without_bounds_is_no_fit(error: float) -> None:
    fit = Fit(error, 5.0, regression=True)
    assert not fit.better and "no finite number" in fit.in_words()
    assert json.dumps(fit.as_fields(), allow_nan=False) == '{"models": null, "constant": 5.0}'


def test_a_run_whose_error_has_no_bounds_ends_with_a_record_that_can_be_read(tmp_path: Path) -> None:
    file, folder = tmp_path / "exploding.toml", tmp_path / "out"
    file.write_text(EXPLODING)
    train(read_experiment(file), folder, Progress())
    (run,) = find_runs(folder)
    end = run.events[-1]
    assert end["event"] == "end" and end["training"]["models"] is None
    fit = fit_on_record(run)
    assert fit is not None and not fit.better and "no finite number" in fit.in_words()

    # As it was written at first.
    (record,) = folder.rglob(EVENTS)
    events = read_events(record)
    events[-1]["training"]["models"] = math.inf
    record.write_bytes(chained(events))
    before = read_run(record.parent)
    assert before is not None and fit_on_record(before) == fit
