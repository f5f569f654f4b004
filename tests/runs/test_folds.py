"""Runs that leave out one client each, in one program, as a search on a GPU has them: the records of separate ones."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from perinvfl.runs.batches import InThisProcess
from perinvfl.runs.experiment import Experiment, build_experiment
from perinvfl.runs.progress import Lines, Progress
from perinvfl.runs.records import TOGETHER, Run, read_run
from perinvfl.runs.search import batch_trials
from perinvfl.runs.train import train
from perinvfl.runs.trial import Trial
from tests.stops import StopAt

DIGITS = {"benchmark": "rc_mnist", "train_per_client": 60, "test_per_client": 40, "holdout": 20}
ALGORITHMS = {
    "perinvfl": {"name": "perinvfl", "personal_optimizer": "adam"},
    "groupdro": {"name": "groupdro"},
}


class AsOnAGpu(InThisProcess):
    def uses_gpu(self, device: str) -> bool:
        return True


def folds(name: str, data: dict[str, Any] | None = None, **tables: Any) -> Experiment:
    """Two settings, two seeds, four clients left out."""
    table = {"data": DIGITS | (data or {}), "model": {"hidden": [8]}, "algorithm": [ALGORITHMS[name]], **tables}
    table["training"] = {"rounds": 8, "evaluate_every": 4, "executor": "vmap", **tables.get("training", {})}
    trials = [
        dataclasses.replace(trial, label=f"{rate}, {trial.seed}, {client}", algorithm=algorithm)
        for client in range(4)
        for trial in build_experiment(table | {"seeds": [3, 4], "data": table["data"] | {"leave_out": client}}).trials
        for rate in (0.05, 0.2)
        for algorithm in [dataclasses.replace(trial.algorithm, learning_rate=rate)]
    ]
    return Experiment("folds", tuple(trials))


def programs(experiment: Experiment) -> list[int]:
    return [len(group) for group in batch_trials(experiment.trials, 64, join_folds=True)]


def record_of(trial: Trial, out: Path) -> Run:
    run = read_run(out / trial.folder)
    assert run is not None and run.finished
    return run


def fit_of(run: Run) -> dict[str, float]:
    """How well it does on its own training data."""
    measured: dict[str, float] = run.events[-1]["training"]
    return measured


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("training", [{}, {"batch_size": 16}], ids=["all samples", "batches"])
def test_together_as_apart(name: str, training: dict[str, Any], tmp_path: Path) -> None:
    experiment = folds(name, training=training)
    assert programs(experiment) == [16]
    together, apart = tmp_path / "together", tmp_path / "apart"
    train(experiment, together, Progress(), most_together=64, dispatcher=AsOnAGpu())
    train(experiment, apart, Progress(), most_together=1)
    seen = set()
    for trial in experiment.trials:
        one, other = record_of(trial, together), record_of(trial, apart)
        assert one.asked == other.asked and len(one.evaluations) == 2
        for left, right in zip(one.evaluations, other.evaluations, strict=True):
            assert left["risks"] == pytest.approx(right["risks"], abs=1e-5)
            for kind in {"global", "personal"} & left.keys():
                assert left[kind]["left-out"] == pytest.approx(right[kind]["left-out"], abs=1e-6), trial.label
        assert fit_of(one) == pytest.approx(fit_of(other), abs=1e-5)
        seen.add(tuple(one.evaluations[0]["risks"]))
    assert len(seen) == 16  # each had data and settings of its own


def test_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perinvfl.runs.group.CHECKPOINT_SHARE", 0.0)  # a checkpoint after every round
    experiment = folds("perinvfl", training={"batch_size": 16})
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(experiment, whole, Progress(), most_together=64, dispatcher=AsOnAGpu())
    with pytest.raises(KeyboardInterrupt):
        train(experiment, broken, StopAt(6), most_together=64, dispatcher=AsOnAGpu())
    assert len(list((broken / TOGETHER).glob("*.pt"))) == 1
    said: list[str] = []
    train(experiment, broken, Lines(said.append), most_together=64)  # begun together, it goes on together anywhere
    assert any("resumes after round" in line for line in said)
    for trial in experiment.trials:
        one, other = record_of(trial, whole), record_of(trial, broken)
        assert [untimed(event) for event in one.evaluations] == [untimed(event) for event in other.evaluations]


def untimed(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "seconds"}


def test_folds_of_other_shapes_and_prepared_ones_stay_apart() -> None:
    assert programs(folds("perinvfl", {"p_train": [[0.9, 0.8], [0.8, 0.7], [0.7], [0.6]]})) == [4] * 4
    assert programs(folds("perinvfl", contexts={"infer": "hard", "every": 3})) == [4] * 4
    assert batch_trials(folds("perinvfl").trials, 64) != batch_trials(folds("perinvfl").trials, 64, join_folds=True)
