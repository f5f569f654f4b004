"""What rows are taken to mean: labels, numbers, names."""

from pathlib import Path
from typing import Any

import pytest

from perinvfl.data.own.rows import in_order, number_of
from tests.data.own.small_table import read, rows_of, write


def test_what_labels_are_taken_to_be(tmp_path: Path) -> None:
    def task(label: Any, **more: Any) -> tuple[str, int]:
        federation = read(write(tmp_path / "t.csv", rows_of(label=label)), **more)
        return federation.task, federation.outputs

    assert task(lambda i: i % 2) == ("binary", 1)
    assert task(lambda i: ["no", "yes"][i % 2]) == ("binary", 1)
    assert task(lambda i: i % 3) == ("multiclass", 3)
    assert task(lambda i: i % 3, task="regression") == ("regression", 1)
    assert task(lambda i: i) == ("regression", 1)  # more whole numbers than anyone has classes
    assert task(lambda i: i % 30, task="multiclass") == ("multiclass", 30)
    assert task(lambda i: i / 7) == ("regression", 1)
    assert task(lambda i: ["1", "2", "many"][i % 3], task="multiclass") == ("multiclass", 3)
    assert task(lambda i: i % 2, classes=[0, 1, 2], task="multiclass") == ("multiclass", 3)
    federation = read(write(tmp_path / "t.csv", rows_of(label=lambda i: ["yes", "no"][i % 2])), classes=["yes", "no"])
    assert federation.schema.classes == ("yes", "no")


def test_a_regression_is_standardised_and_says_how(tmp_path: Path) -> None:
    federation = read(write(tmp_path / "t.csv", rows_of(label=lambda i: 1000.5 + i)), test_contexts=[2022])
    y = federation.train.y[federation.train.context >= 0]
    assert y.mean().item() == pytest.approx(0, abs=1e-5) and y.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    back = federation.schema.label_mean + federation.schema.label_scale * y
    assert 1000 < back.min() < back.max() < 1090.6
    raw = read(tmp_path / "t.csv", test_contexts=[2022], standardise=False)
    assert raw.schema.label_scale == 1 and raw.train.y.max() > 1000


@pytest.mark.parametrize(("text", "number"), [("1", 1.0), (" 2.5 ", 2.5), ("-1e3", -1e3), ("True", 1.0), ("x", None)])
def test_numbers(text: str, number: float | None) -> None:
    assert number_of(text) == number


def test_order_of_names() -> None:
    assert in_order(["10", "9", "2", "10"]) == ("2", "9", "10")
    assert in_order(["b", "10", "a"]) == ("10", "a", "b")
