"""The command line end to end: run, sweep and the tables of what they leave behind."""

import csv
import io
import json
from pathlib import Path

import pytest

from perinvfl.cli import call
from tests.commands import called, perinvfl, tiny_file, untimed

SECOND = """
[[algorithm]]
name = "fedavg"
learning_rate = 0.1
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished experiment of two algorithms and two seeds, and what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    file = tiny_file(folder, more=SECOND)
    done = called("run", file, "--set", "seeds=[0, 1]", "--out", folder / "runs")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_run_ends_with_a_table_and_leaves_records(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    for word in ("Constant", "PerInvFL", "FedAvg", "Average", "Worst client", "Records:"):
        assert word in printed
    runs = [path for path in (folder / "runs" / "tiny").iterdir() if path.is_dir()]
    assert len(runs) == 4
    events = [json.loads(line) for line in (runs[0] / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "evaluation", "evaluation", "end"]
    start = events[0]
    assert start["id"] in runs[0].name
    assert {"asked", "environment", "notes", "spectrum"} <= set(start)
    assert start["environment"]["torch"]
    assert {"data", "model", "training", "algorithm", "seed"} == set(start["asked"])
    assert len(events[-2]["global"]["0.1"]) == start["clients"]


def test_asking_again_does_nothing_and_says_so(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*") if path.is_file()}
    again = called("run", folder / "tiny.toml", "--set", "seeds=[0, 1]", "--out", folder / "runs")
    assert again.returncode == 0
    assert again.stdout.count("already done, nothing to do") == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_another_setting_is_another_run(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    other = called(
        "run", folder / "tiny.toml", "--out", folder / "other", "--set", "algorithm.perinvfl.beta=0.25",
        "--set", "training.rounds=3",
    )  # fmt: skip
    assert other.returncode == 0, other.stderr
    here = {path.name for path in (folder / "runs/tiny").iterdir()}
    assert not here & {path.name for path in (folder / "other/tiny").iterdir()}
    recorded = next((folder / "other/tiny").glob("perinvfl-*/events.jsonl")).read_text().splitlines()[0]
    assert json.loads(recorded)["asked"]["algorithm"]["beta"] == 0.25
    assert json.loads(recorded)["asked"]["training"]["rounds"] == 3


def test_table_formats_agree(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    shown = {form: called("table", folder / "runs/tiny", "--format", form) for form in ("md", "csv", "latex", "json")}
    assert all(done.returncode == 0 for done in shown.values())
    table = json.loads(shown["json"].stdout)
    assert (table["benchmark"], table["rule"], table["seeds"]) == ("random", "last round", 2)
    assert [row["method"] for row in table["rows"]] == ["Constant", "PerInvFL", "FedAvg"]
    row = table["rows"][1]
    assert set(row["cases"]) == {"0.1", "0.5"}
    means = [case["mean"] for case in row["cases"].values()]
    assert row["average"] == pytest.approx(sum(means) / 2)
    assert row["worst"] == min(means)
    lines = list(csv.reader(io.StringIO(shown["csv"].stdout)))
    assert lines[2][0] == "PerInvFL" and lines[2][3].startswith(f"{row['average']:.2f}")
    assert f"{row['average']:.2f}" in shown["md"].stdout and f"{row['average']:.2f}" in shown["latex"].stdout
    assert shown["latex"].stdout.startswith(r"\begin{tabular}")


def test_table_trains_nothing(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    before = sorted(path.stat().st_mtime_ns for path in (folder / "runs").rglob("*"))
    assert called("table", folder / "runs/tiny").returncode == 0
    assert sorted(path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")) == before


def test_sweep_draws_within_the_ranges_and_holds_what_the_file_names(tmp_path: Path) -> None:
    done = called("sweep", tiny_file(tmp_path, rounds=3), "--trials", 4, "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    starts = [json.loads(path.read_text().splitlines()[0]) for path in (tmp_path / "runs").rglob("events.jsonl")]
    drawn = [start["asked"]["algorithm"] for start in starts]
    assert len(drawn) == 4
    assert {setting["beta"] for setting in drawn} == {0.5}  # named in the file
    assert len({setting["l2"] for setting in drawn}) == 4
    assert all(1e-5 <= setting["l2"] <= 3e-3 for setting in drawn)


def test_the_core_command_does_the_same(tmp_path: Path) -> None:
    file = tiny_file(tmp_path)
    core = perinvfl(file, "--out", tmp_path / "core", module="perinvfl.train")
    full = called("run", file, "--out", tmp_path / "full")
    assert core.returncode == full.returncode == 0, core.stderr + full.stderr
    (one,), (other,) = (list((tmp_path / name).rglob("events.jsonl")) for name in ("core", "full"))
    assert one.parent.name == other.parent.name
    assert untimed(one) == untimed(other)


def test_a_run_that_becomes_nan_stops_alone(tmp_path: Path) -> None:
    more = '\n[[algorithm]]\nname = "fedavg"\nlabel = "Too fast"\nlearning_rate = 1e18\nlocal_steps = 3\n' + SECOND
    done = called("run", tiny_file(tmp_path, more=more), "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert "Too fast, seed 0: no longer finite after round" in done.stdout
    assert "learning_rate = 1e+18" in done.stdout
    table = json.loads(called("table", tmp_path / "runs/tiny", "--format", "json").stdout)
    assert [row["method"] for row in table["rows"]] == ["Constant", "PerInvFL", "FedAvg"]
    again = called("run", tmp_path / "tiny.toml", "--out", tmp_path / "runs")
    assert again.stdout.count("already done") == 3


def test_two_settings_of_one_label_are_two_rows(tmp_path: Path) -> None:
    file = tiny_file(tmp_path)
    for rounds in (10, 5):
        assert call(["run", str(file), "--out", str(tmp_path / "runs"), "--set", f"training.rounds={rounds}"]) == 0
    table = json.loads(called("table", tmp_path / "runs/tiny", "--format", "json").stdout)
    methods = sorted(row["method"] for row in table["rows"] if row["kind"] == "measured")
    assert methods == ["PerInvFL (training.rounds = 10)", "PerInvFL (training.rounds = 5)"]
    assert table["seeds"] == 1
    other = call(["run", str(file), "--quiet", "--out", str(tmp_path / "runs"), "--set", "algorithm.local_steps=3"])
    latex = called("table", tmp_path / "runs/tiny", "--format", "latex").stdout
    assert other == 0 and r"algorithm.local\_steps = 3" in latex and "local_steps" not in latex
