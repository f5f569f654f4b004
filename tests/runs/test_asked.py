"""From what is on record back to the trial that asks for the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from perinvfl.runs.asked import trial_of
from perinvfl.runs.experiment import Experiment, build_experiment
from perinvfl.runs.search import search

TABLE: dict[str, Any] = {
    "seeds": [3],
    "data": {"benchmark": "rc_mnist", "train_per_client": 60, "test_per_client": 40, "holdout": 20},
    "contexts": {"infer": "hard", "use": "judge"},
    "model": {"hidden": [8]},
    "training": {"rounds": 4},
    "algorithm": [
        {"name": "fedavg"},
        {"name": "perinvfl", "label": "Ours #1 without 2", "beta": [1, 2, 3, 4], "contexts": {"use": "discount"}},
        {"name": "irm", "label": "Plain", "contexts": {"infer": "given"}},
    ],
}


def experiments() -> list[Experiment]:
    return [build_experiment(TABLE), search(build_experiment(TABLE), 3, search_seed=0)]


@pytest.mark.parametrize("experiment", experiments(), ids=["plain", "searched"])
def test_a_trial_comes_back_from_what_it_asked(experiment: Experiment) -> None:
    for trial in experiment.trials:
        asked = json.loads(json.dumps(trial.asked()))  # as a record holds it
        again = trial_of(asked)
        assert again.id == trial.id and json.loads(json.dumps(again.asked())) == asked


def test_each_fold_of_own_data_comes_back_alone(tmp_path: Path) -> None:
    rows = [f"{site},{year},{k % 2},{k}" for site in "ab" for year in (2020, 2021) for k in range(6)]
    (tmp_path / "own.csv").write_text("\n".join(["client,context,label,x", *rows]) + "\n")
    data = {"benchmark": "file", "path": str(tmp_path / "own.csv"), "leave_one_context_out": True}
    trials = build_experiment({"data": data, "algorithm": [{"name": "fedavg"}]}).trials
    assert [trial.fold for trial in trials] == ["2020", "2021"]
    assert [trial_of(trial.asked()).id for trial in trials] == [trial.id for trial in trials]
    assert [trial_of(trial.asked()).facts for trial in trials] == [trial.facts for trial in trials]


def test_only_what_is_given_is_another() -> None:
    trial = build_experiment(TABLE).trials[1]
    other = trial_of(trial.asked(), seed=9, label="Other", data={"leave_out": 2}, training={"rounds": 7})
    assert (other.seed, other.label, other.data.leave_out, other.training.rounds) == (9, "Other", 2, 7)
    assert other.fold == "client 2" and (other.algorithm, other.model) == (trial.algorithm, trial.model)
    before, after = trial.asked(), other.asked()
    assert {key for key in before["data"] if before["data"][key] != after["data"][key]} == {"leave_out"}
    assert {key for key in before["training"] if before["training"][key] != after["training"][key]} == {"rounds"}


def test_a_search_names_the_method_and_the_setting_beside_the_label() -> None:
    drawn = search(build_experiment(TABLE), 2, search_seed=0).trials
    facts = [(trial.method, trial.setting, trial.label, trial.purpose) for trial in drawn]
    assert facts[2:4] == [
        ("Ours #1 without 2", 0, "Ours #1 without 2 #0", None),
        ("Ours #1 without 2", 1, "Ours #1 without 2 #1", None),
    ]
