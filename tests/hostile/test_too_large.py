"""Settings beyond any machine: refused by their bounds, or by what fits into memory, before anything is trained."""

import math
from pathlib import Path
from typing import Any

import pytest

from perinvfl.core.config import build
from perinvfl.core.hyper import LARGEST, LARGEST_WHOLE, check_bounds
from perinvfl.core.memory import check_fits, free_memory
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.runs.experiment import build_experiment
from tests.commands import called, check_refusal, tiny_file


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("model.hidden=[1000000000]", "model.hidden = [1000000000]: must be at most 1 000 000"),
        ("model.hidden=[1000000, 1000000]", "with its gradient and its update, would need 12 TB of memory, and "),
        (f"algorithm.local_steps={10**30}", "must be at most 1 000 000"),
        ("training.rounds=0x" + "f" * 5000, "a number of more than 4000 digits: must be at most 1 000 000 000"),
        (f"training.rounds={'9' * 5000}", "must be a whole number"),
        (f"algorithm.learning_rate=1{'0' * 400}", "must be a number between -1e+18 and 1e+18"),
        ("algorithm.beta=1e300", "must be at most 1e+18"),
        ("data.shape=[1000000, 1000000]", "would need"),
        ("data.clients=1000000000", "must be at most 100 000"),
        (f"seeds=[{2**64}]", "must be a list of whole numbers from 0 to 9223372036854775807"),
        ("seeds=" + "[" * 3000, "must be a list of whole numbers"),
    ],
)
def test_a_setting_that_is_too_large_is_refused(setting: str, why: str, tmp_path: Path) -> None:
    done = called("run", tiny_file(tmp_path), "--set", setting, "--out", tmp_path / "runs")
    check_refusal(done.returncode, done.stdout, done.stderr, why)


def test_batches_that_do_not_fit_are_refused_with_their_size(tmp_path: Path) -> None:
    file = tiny_file(tmp_path, training="batch_size = 16")
    done = called("run", file, "--set", "algorithm.local_steps=1000000", "--set", "algorithm.personal_steps=1000000")
    check_refusal(done.returncode, done.stdout, done.stderr, "batches of 16 samples for each of 3 clients would need")


def test_what_is_free_is_known_and_enough_is_let_pass() -> None:
    assert 10**7 < free_memory() < math.inf
    check_fits(10**6, "A small thing")
    with pytest.raises(UserError, match=r"^A large thing would need 1 PB of memory, and .* are free here\.$"):
        check_fits(1e15, "A large thing")


@pytest.mark.parametrize("number", [LARGEST_WHOLE, 1])
def test_every_whole_number_has_an_upper_bound(number: int) -> None:
    check_bounds(Training(rounds=number), "training")
    with pytest.raises(UserError, match="must be at most"):
        check_bounds(Training(rounds=LARGEST_WHOLE + number), "training")


def test_every_number_has_an_upper_bound() -> None:
    with pytest.raises(UserError, match="between"):
        build(Training, {"fraction": 10**400}, "training")
    with pytest.raises(UserError, match="must be at most 1"):
        build(Training, {"fraction": 2 * LARGEST}, "training")
    with pytest.raises(UserError, match="must be a table of settings, not values too deeply nested"):
        deep: list[object] = []
        for _ in range(100_000):
            deep = [deep]
        build(ModelSettings, deep, "model")


LONG = "x" * 100_000
TOO_LONG = [
    ({"data": {"benchmark": "rc_mnist", "data_root": LONG}}, "must be a text of at most 4000 characters"),
    ({"data": {"benchmark": "rc_mnist", "data_root": "y" * 300}}, "has no file train-images"),
    ({"algorithm": [{"name": "fedavg", LONG: {"from": 0}}]}, "a search range is"),
]


@pytest.mark.parametrize(("change", "why"), TOO_LONG, ids=["text", "name of a file", "key"])
def test_texts_and_names_that_are_too_long_are_short_in_the_sentence(change: dict[str, Any], why: str) -> None:
    table = {"data": {"benchmark": "random"}, "training": {"rounds": 1}, "algorithm": [{"name": "fedavg"}]}
    with pytest.raises(UserError, match=why) as refusal:
        build_experiment(table | change).trials[0].federation()
    assert len(str(refusal.value)) < 1000
