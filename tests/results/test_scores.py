"""Accuracy by class and group, and runs that are shown by it."""

import dataclasses
from pathlib import Path

import pytest

from perinvfl.errors import UserError
from perinvfl.plots.figure_data import look_at, spectrum_values
from perinvfl.results.scores import class_balanced, has_groups
from perinvfl.results.table import make_table
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import Run, read_run
from perinvfl.runs.train import train

BIRDS = {
    "benchmark": "drawn_birds",
    "train_per_client": 12,
    "test_per_client": 8,
    "left_over": 6,
    "size": 16,
    "birds": 40,
}


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Run:
    experiment = build_experiment(
        {
            "name": "birds",
            "data": BIRDS,
            "model": {"hidden": [8]},
            "training": {"rounds": 3, "evaluate_every": 1},
            "algorithm": [{"name": "ditto"}],
        }
    )
    (folder,) = train(experiment, tmp_path_factory.mktemp("runs"), Progress())
    run = read_run(folder)
    assert run is not None
    return run


def test_every_accuracy_is_the_mean_over_the_classes_a_client_has(birds: Run) -> None:
    there = birds.start["notes"]["groups"]["counts"]
    shown = class_balanced(birds)
    for before, after in zip(birds.evaluations, shown.evaluations, strict=True):
        for kind in ("personal", "global"):
            for case, counts in there.items():
                for client, (land_on_land, land_on_water, water_on_land, water_on_water) in enumerate(counts):
                    right = before[f"{kind} groups"][case][client]
                    sides = [(right[0] + right[1], land_on_land + land_on_water)]
                    sides += [(right[2] + right[3], water_on_land + water_on_water)]
                    shares = [hits / count for hits, count in sides if count]
                    assert after[kind][case][client] == pytest.approx(sum(shares) / len(shares))
    assert shown.evaluations[-1]["personal"] != birds.evaluations[-1]["personal"]
    both = [all((row[0] + row[1], row[2] + row[3])) for rows in there.values() for row in rows]
    constants = [score for case in there for score in shown.start["notes"]["constant"][case]]
    assert [score for score, has in zip(constants, both, strict=True) if has] == [0.5] * sum(both) and any(both)


def test_figures_of_rare_classes_show_class_balanced_accuracy_along_the_shift(birds: Run) -> None:
    figure = look_at([birds])
    assert figure.measure == "class-balanced accuracy" and figure.levels["constant"] == pytest.approx(50)
    assert figure.cases == birds.start["spectrum"]  # and not "0.1 left over", which is the same shift on other birds
    last = birds.evaluations[-1]["balanced"]
    found = {value["case"]: value["accuracy"] for value in spectrum_values(figure) if value["source"] == "measured"}
    assert found == pytest.approx({case: 100 * last[case] for case in birds.start["spectrum"]}, abs=1e-3)


def test_a_run_without_groups_stays_as_it_is() -> None:
    run = Run(Path(), [{"event": "start", "notes": {"constant": {"0.1": [0.5]}}}])
    assert not has_groups(run) and class_balanced(run) is run


def test_runs_of_which_one_has_no_groups_are_not_shown_by_group(birds: Run) -> None:
    start, *others = birds.events
    notes = {name: note for name, note in birds.notes.items() if name != "groups"}
    without = dataclasses.replace(birds, events=[{**start, "notes": notes, "id": "another"}, *others])
    assert make_table([birds], "balanced").rows
    with pytest.raises(UserError, match="not all of these runs have groups"):
        make_table([birds, without], "balanced")
