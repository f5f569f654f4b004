"""The picture of the benchmarks' history shows what the table says."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts/make_history_figure.py"))


def test_the_picture_is_that_of_the_table() -> None:
    rows, states = SCRIPT["history"]((ROOT / "benchmarks/RESULTS.md").read_text())
    assert states[:2] == ["0.2.0, rebuilt", "0.2.0"] and {row["state"] for row in rows} == set(states)
    assert SCRIPT["PICTURE"].read_text() == SCRIPT["picture"](rows, states), "run scripts/make_history_figure.py"


def test_a_limit_is_reached_from_above_and_a_gap_is_left_out() -> None:
    table = (
        "# Measured\n\n## History\n\n| | target | a | b |\n|---|---|---|---|\n"
        "| rate | 2 | 1 | 3 |\n| time | at most 1.5 | | 3 |\n"
    )
    rows, states = SCRIPT["history"](table)
    assert states == ["a", "b"] and rows == [
        {"what": "rate", "state": "a", "reached": 0.5},
        {"what": "rate", "state": "b", "reached": 1.5},
        {"what": "time", "state": "b", "reached": 0.5},
    ]
