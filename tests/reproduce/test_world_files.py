"""The worlds of experiments/worlds: what is written about them is what they are."""

import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from perinvfl.algorithms import ALGORITHMS
from perinvfl.reproduce.worlds import Plan, World, read_plan, reduced
from perinvfl.reproduce.worlds_command import main
from perinvfl.results.worlds import CHOOSING, REPORTED, half_of, strength_of
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.records import read_packed
from perinvfl.runs.trial import Trial

FOLDER = Path(__file__).parents[2] / "experiments/worlds"
PLAN = read_plan(FOLDER)
IN_WORDS = {"varies": "varies", "same": "same everywhere", "none": "none"}


def trial_of(world: World) -> Trial:
    return build_experiment({**world.table, "algorithm": {"name": "fedavg"}}, world.name).trials[0]


def test_there_are_enough_worlds_and_every_family_is_in_both_halves() -> None:
    assert len(PLAN.worlds) >= 24
    families = {world.name.partition("-")[0] for world in PLAN.worlds}
    assert families == {"birds", "images", "structural", "tables"}
    for family in families:
        numbers = sorted(int(w.name.split("-")[1]) for w in PLAN.worlds if w.name.startswith(family))
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) % 2 == 0


def test_the_work_of_a_world_counts_settings_that_its_file_leaves_out() -> None:
    """The photographs of WaterBird take longest but for the digits at full size; they were begun last of all once."""
    by_effort = sorted(PLAN.worlds, key=lambda world: -world.effort)
    assert {world.name for world in by_effort[:3]} == {
        "images-02-paper",
        "birds-03-waterbird-weak",
        "birds-04-waterbird",
    }
    assert {world.name.partition("-")[0] for world in by_effort[-14:]} == {"tables", "structural"}


def test_pairs_are_of_a_kind() -> None:
    """A world apart has its like in the other half."""
    halves = {half: [strength_of(world.table["data"]) for world in PLAN.half(half)] for half in ("chosen", "reported")}
    assert Counter(halves["chosen"]) == Counter(halves["reported"])


@pytest.mark.parametrize("world", PLAN.worlds, ids=lambda world: world.name)
def test_the_readme_says_what_the_file_is(world: World) -> None:
    comment = (FOLDER / f"{world.name}.toml").read_text().splitlines()[0].removeprefix("# ")
    strength = IN_WORDS[strength_of(world.table["data"])]
    line = f"| `{world.name}` | {half_of(world.name)} | {strength} | {comment} |"
    assert line in (FOLDER / "README.md").read_text().splitlines()
    assert set(world.table) <= {"data", "model", "training"}
    assert 100 <= world.table["training"]["rounds"] <= 200
    assert world.table["data"]["holdout"] > 0  # for the accuracy in distribution


def test_the_readme_lists_no_other_world() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert listed == [world.name for world in PLAN.worlds]


@pytest.mark.parametrize("world", [w for w in PLAN.worlds if w.benchmark not in ("structural", "waterbird")], ids=str)
def test_the_bound_is_the_same_world_without_the_shortcut(world: World) -> None:
    without = reduced(Plan((world,), (), 0, (1,))).worlds[0].without_shortcut()
    assert without is not None
    whole, bare = (trial_of(made).federation() for made in (reduced(Plan((world,), (), 0, (1,))).worlds[0], without))
    assert whole.spectrum == bare.spectrum and whole.train.x.shape == bare.train.x.shape
    assert torch.equal(whole.train.y, bare.train.y)
    cases = [bare.tests[case] for case in bare.spectrum]
    if world.benchmark != "drawn_birds":  # there the test is the same, and training has no shortcut
        assert all(torch.equal(case.x, cases[0].x) for case in cases)


def test_methods_have_at_most_six_settings_that_can_be_read() -> None:
    digits, birds = (
        next(world for world in PLAN.worlds if world.name == name) for name in ("images-01-small", "birds-01-drawn")
    )
    assert len(PLAN.seeds) == 5
    for method in PLAN.methods:
        assert 1 <= len(method.entries) <= 6
        built = method.entries[0]["name"] in ALGORITHMS
        if built and method.entries[0].get("contexts", {}).get("infer") != "xrm":
            world = birds if method.label == "FedBN" else digits  # it needs norm layers
            ids = {trial.id for trial in method.trials(world, range(len(method.entries)), (0,))}
            assert len(ids) == len(method.entries)


def test_a_small_version_of_every_family_runs(tmp_path: Path) -> None:
    names = ["images-11-ten-classes", "images-12-ten-garments", "tables-05-categories", "tables-06-categories-few"]
    names += ["birds-01-drawn", "birds-02-drawn-reversed", "structural-01-many", "structural-02-few"]
    only = [word for name in names for word in ("--only", name)]
    asked = [
        "--worlds",
        str(FOLDER),
        "--out",
        str(tmp_path),
        "--reduced",
        *only,
        "--method",
        "Bound",
        "--method",
        "Ditto",
    ]
    assert main(asked) == 0
    for stage, half, seeds in ((CHOOSING, "chosen", 1), (REPORTED, "reported", 2)):
        runs = read_packed(tmp_path / stage)
        assert {run.experiment for run in runs if run.method == "Ditto"} == {n for n in names if half_of(n) == half}
        assert len({run.seed for run in runs}) == seeds
