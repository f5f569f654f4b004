"""Methods measured in worlds, from end to end at a tiny size: choosing, reporting, resuming, and the tables."""

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perinvfl.reproduce.worlds_command import main
from perinvfl.results.worlds import (
    ABOUT,
    BOUND,
    CHOOSING,
    REPORTED,
    WorldRecords,
    half_of,
    noise_variance,
    read_worlds,
    score_of,
    strength_of,
    worlds_folder,
)
from perinvfl.results.worlds_table import as_json, full_text, summaries, summary_text
from perinvfl.runs.records import Run, read_packed
from tests.commands import called
from tests.test_imports import BLOCK, check_without_torch

WORLDS = {
    "tables-01-one": 'benchmark = "planted"\nrows = 40\ntest_rows = 30\nholdout = 0.2',
    "tables-02-two": 'benchmark = "planted"\nrows = [40, 30]\ntest_rows = 30\nholdout = 0.2\np_train = [0.9, 0.7]',
    "tables-03-equal": 'benchmark = "planted"\nrows = 30\ntest_rows = 20\nholdout = 0.2\np_train = [0.9, 0.9]',
    "tables-04-equal": 'benchmark = "planted"\nrows = 30\ntest_rows = 20\nholdout = 0.2\np_train = [0.8, 0.8]',
    "structural-01-a": 'benchmark = "structural"\nclients = 3\nsamples = 20\nholdout = 4',
    "structural-02-b": 'benchmark = "structural"\nclients = 3\nsamples = 20\nholdout = 4\ndimension = 7',
}
SMALL = "\n[model]\nhidden = [5]\n[training]\nrounds = 4\nevaluate_every = 4\n"
METHODS = """
seed = 0
seeds = [11, 12]
[bound]
name = "fedavg"
settings = [{ learning_rate = 0.5 }, { learning_rate = 0.05 }]
[[method]]
name = "fedavg"
settings = [{ learning_rate = 0.001 }, { learning_rate = 0.5 }, { learning_rate = 0.1 }]
[[method]]
name = "groupdro"
label = "Split"
contexts = { infer = "hard", use = "balance" }
settings = [{ contexts.reference_rounds = 1 }, { contexts.reference_rounds = 2, contexts.reference_rate = 0.1 }]
[[method]]
name = "not built yet"
label = "Later"
"""


def write(folder: Path, methods: str = METHODS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in WORLDS.items():
        (folder / f"{name}.toml").write_text(f"[data]\n{data}\n{SMALL}")
    (folder / "methods.toml").write_text(methods)
    return folder


def run(folder: Path, out: Path, *more: str) -> int:
    return main(["--worlds", str(folder), "--out", str(out), *more])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds")
    assert run(write(folder / "worlds"), folder / "out") == 0
    return folder


@pytest.fixture(scope="module")
def records(made: Path) -> WorldRecords:
    return read_worlds(made / "out")


def key(run: Run) -> tuple[str, str, int | None, int]:
    return run.experiment, run.method, run.setting, run.seed


def test_every_setting_runs_in_the_chosen_worlds_and_one_in_the_reported(records: WorldRecords) -> None:
    tables = ["tables-01-one", "tables-03-equal"]
    wanted = [(w, "FedAvg", s, 0) for w in (*tables, "structural-01-a") for s in range(3)]
    wanted += [(w, m, s, 0) for w in tables for m in (BOUND, "Split") for s in range(2)]
    assert sorted(map(key, records.choosing)) == sorted(wanted)
    reported = [key(run) for run in records.reported]
    assert {half_of(world) for world, *_ in reported} == {"reported"}
    for method, worlds in {"FedAvg": 3, BOUND: 2, "Split": 2}.items():
        of_method = [place for place in reported if place[1] == method]
        assert {place[2] for place in of_method} == {records.settings[method]}
        assert sorted({place[3] for place in of_method}) == [11, 12]
        assert len(of_method) == 2 * worlds


def test_the_setting_with_the_best_mean_over_the_chosen_worlds_is_taken(records: WorldRecords) -> None:
    for method in ("FedAvg", BOUND, "Split"):
        means = {}
        for number in range(3 if method == "FedAvg" else 2):
            runs = [run for run in records.choosing if (run.method, run.setting) == (method, number)]
            last = [run.evaluations[-1]["global"] for run in runs if run.task == "binary"]
            means[number] = statistics.fmean(
                statistics.fmean(statistics.fmean(event[case]) for case in ("0.1", "0.3", "0.5")) for event in last
            )
        assert records.settings[method] == max(means, key=lambda number: means[number])


def test_the_bound_is_trained_without_the_shortcut_and_nothing_else_is(records: WorldRecords) -> None:
    for run in [*records.choosing, *records.reported]:
        if run.benchmark == "planted":
            assert run.asked["data"]["without_shortcut"] == (run.method == BOUND)
    for world in ("tables-02-two", "tables-04-equal"):
        assert records.bound(world) == pytest.approx(records.scores[world][BOUND].shift)
    structural = [run for run in records.reported if run.benchmark == "structural"]
    assert records.bound("structural-02-b") == pytest.approx(statistics.fmean(map(noise_variance, structural)))


def test_what_cannot_run_is_a_dash_with_its_reason(records: WorldRecords) -> None:
    assert set(records.refused["Later"]) == set(WORLDS)
    assert set(records.refused["Split"]) == {"structural-01-a", "structural-02-b"}
    text = full_text(records)
    cells = {row[0]: dict(zip(text.header, row, strict=True)) for row in text.rows}
    assert sorted(cells) == ["structural-02-b", "tables-02-two", "tables-04-equal"]
    assert cells["tables-02-two"]["Later"].startswith("– [") and cells["tables-02-two"]["FedAvg"][0].isdigit()
    split = cells["structural-02-b"]["Split"]
    assert split.startswith("– [")
    (reason,) = (note for note in text.notes if note.startswith(split.removeprefix("– ")))
    assert "a regression has no right and wrong answers" in reason


def test_a_method_that_nobody_has_run_yet_is_named_below_the_table(records: WorldRecords) -> None:
    more = WorldRecords(records.choosing, records.reported, [*records.methods, "Tomorrow"], records.refused)
    assert more.waiting == ["Tomorrow"] and records.waiting == []
    assert summary_text(more).rows == summary_text(records).rows
    assert full_text(more).header == full_text(records).header
    assert "Not run in the reported worlds yet: Tomorrow." in summary_text(more).notes
    assert not any("Not run" in note for note in summary_text(records).notes)


def test_the_summary_is_of_worlds_where_the_strength_varies(records: WorldRecords) -> None:
    (fedavg,) = (row for row in summaries(records) if row.method == "FedAvg")
    own, bound = records.scores["tables-02-two"]["FedAvg"], records.bound("tables-02-two")
    assert bound is not None and fedavg.worlds == 1
    assert fedavg.shift == pytest.approx(own.shift) and fedavg.inside == pytest.approx(own.inside)
    assert fedavg.to_bound == fedavg.worst_to_bound == pytest.approx(bound - own.shift)
    apart, its_bound = records.scores["tables-04-equal"]["FedAvg"].shift, records.bound("tables-04-equal")
    assert its_bound is not None and fedavg.same == pytest.approx(its_bound - apart) and fedavg.none is None
    error, noise = records.scores["structural-02-b"]["FedAvg"].shift, records.bound("structural-02-b")
    assert noise is not None and fedavg.error_ratio == pytest.approx(error / noise)
    assert [row[0] for row in summary_text(records).rows] == [BOUND, "FedAvg", "Split", "Later"]
    told = as_json(records)
    assert [row["method"] for row in told["methods"]] == records.methods
    assert told["worlds"][0]["measure"] == "mean squared error" and "Later" in told["worlds"][0]["refused"]


def test_asked_again_nothing_is_made(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: (made / "out" / name).read_bytes() for name in (CHOOSING, REPORTED, ABOUT)}
    assert run(made / "worlds", made / "out") == 0
    told = capsys.readouterr().out
    assert "2 there" in told and " 1 runs made" not in told and " 2 runs made" not in told
    assert before == {name: (made / "out" / name).read_bytes() for name in (CHOOSING, REPORTED, ABOUT)}


def test_finished_folders_are_found_where_nothing_was_packed(made: Path, tmp_path: Path) -> None:
    """As after a kill: the records are in folders, and the same."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "runs").symlink_to(made / "out" / "runs")
    assert run(made / "worlds", out) == 0
    for name in (CHOOSING, REPORTED):
        assert [r.events for r in read_packed(out / name)] == [r.events for r in read_packed(made / "out" / name)]


def test_a_part_can_be_run_and_a_choice_waits_for_all_chosen_worlds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = write(tmp_path / "worlds"), tmp_path / "out"
    assert run(folder, out, "--only", "tables-01-one", "--only", "tables-02-two", "--method", "FedAvg") == 0
    assert "FedAvg is not reported yet" in capsys.readouterr().out
    assert {(r.experiment, r.method) for r in read_packed(out / CHOOSING)} == {("tables-01-one", "FedAvg")}
    assert not (out / REPORTED).exists()
    assert run(folder, out, "--stage", "choose", "--method", "FedAvg") == 0
    assert run(folder, out, "--stage", "report", "--method", "FedAvg", "--only", "tables-02-two") == 0
    assert {(r.experiment, r.method) for r in read_packed(out / REPORTED)} == {("tables-02-two", "FedAvg")}


def test_runs_of_settings_that_are_no_longer_asked_for_are_dropped(tmp_path: Path) -> None:
    out, only = tmp_path / "out", ("--method", "FedAvg", "--only", "tables-01-one", "--stage", "choose")
    assert run(write(tmp_path / "worlds"), out, *only) == 0
    before = {run.id for run in read_packed(out / CHOOSING)}
    changed = METHODS.replace("{ learning_rate = 0.001 }, ", "")
    assert run(write(tmp_path / "worlds", changed), out, *only) == 0
    assert len(read_packed(out / CHOOSING)) == 2 and len(before) == 3


def test_several_processes_make_the_same_records(made: Path, tmp_path: Path) -> None:
    only = ["--only", "tables-01-one", "--method", "FedAvg", "--method", BOUND, "--stage", "choose", "--jobs", "2"]
    assert run(made / "worlds", tmp_path, *only) == 0
    found = {key(r): r.evaluations[-1]["global"] for r in read_packed(tmp_path / CHOOSING)}
    other = {key(r): r.evaluations[-1]["global"] for r in read_packed(made / "out" / CHOOSING)}
    assert len(found) == 5
    assert found == {place: other[place] for place in found}


@pytest.mark.parametrize(
    "more", [(), ("--full",), ("--format", "md"), ("--full", "--format", "csv"), ("--format", "json")]
)
def test_tables_are_read_without_torch(more: Sequence[str], made: Path, tmp_path: Path) -> None:
    shown = check_without_torch(("table", made / "out", *more), folder=tmp_path)
    assert "FedAvg" in shown and "Later" in shown
    if "json" in more:
        assert json.loads(shown)["methods"]


def test_worlds_are_run_where_nothing_but_torch_is_installed(tmp_path: Path) -> None:
    code = BLOCK.replace("from perinvfl.runs.train import main", "from perinvfl.reproduce.worlds_command import main")
    asked = ["--worlds", write(tmp_path / "worlds"), "--out", tmp_path / "out", "--only", "tables-01-one"]
    line = [sys.executable, "-c", code, *map(str, asked), "--method", "FedAvg"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "imported: []" in done.stdout and (tmp_path / "out" / CHOOSING).exists()


def test_a_run_that_did_not_stay_finite_scores_as_the_constant_predictor(records: WorldRecords) -> None:
    run = next(run for run in records.reported if run.task == "binary")
    broken = Run(run.folder, [run.start, {"event": "broken", "round": 1, "why": "no longer finite"}])
    constant = run.notes["constant"]
    expected = 100 * statistics.fmean(statistics.fmean(constant[case]) for case in run.spectrum)
    assert score_of(broken).shift == pytest.approx(expected)
    last = run.evaluations[-1]
    first, *others = last["global"][run.spectrum[0]]
    without = {**last, "global": {**last["global"], run.spectrum[0]: [None, *others]}}  # an error too large to be told
    assert first is not None
    assert score_of(Run(run.folder, [run.start, without])).shift == pytest.approx(expected)


@pytest.mark.parametrize(
    ("data", "strength"),
    [
        ({"benchmark": "structural"}, "varies"),
        ({"benchmark": "rc_mnist", "p_train": [0.9, 0.9]}, "same"),
        ({"benchmark": "rc_mnist", "p_train": [0.9, [0.9, 0.8]]}, "varies"),
        ({"benchmark": "rc_mnist", "p_train": [0.5, [0.5, 0.5]]}, "none"),
        ({"benchmark": "rc_mnist", "p_train": [0.5, 0.5], "classes": 10}, "same"),
        ({"benchmark": "rc_mnist", "p_train": [0.1, 0.1], "classes": 10}, "none"),
        ({"benchmark": "planted", "p_train": [0.9, 0.8], "shortcut": "none"}, "none"),
    ],
)
def test_the_strength_of_a_shortcut_is_read_off_the_data_settings(data: dict[str, Any], strength: str) -> None:
    assert strength_of(data) == strength


@pytest.mark.parametrize(
    ("change", "arguments", "sentence"),
    [
        ({}, ["--only", "tables-01-on"], '--only "tables-01-on" is not known; did you mean tables-01-one?'),
        ({}, ["--method", "Fedavg"], '--method "Fedavg" is not known; did you mean FedAvg?'),
        ({}, ["--jobs", "0"], "--jobs 0: must be at least 1."),
        ({"methods.toml": None}, [], "has no methods.toml; give a folder of worlds, such as experiments/worlds."),
        ({"methods.toml": "seeds = [0, 1]"}, [], "methods.toml: seeds = [0, 1]: must be fresh, and 0 is the one for"),
        ({"methods.toml": "methods = 1"}, [], "methods.toml: methods is not a setting; did you mean method?"),
        (
            {"methods.toml": '[[method]]\nname = "irm"\n[[method]]\nname = "irm"'},
            [],
            'methods.toml: two methods are called "IRM"; give one of them another label.',
        ),
        ({"methods.toml": "[[method]]\nlabel = 'x'"}, [], "methods.toml: method[1] must be a table with a name."),
        ({"methods.toml": "[[method]]\nname = 'irm'\nsettings = 3"}, [], "settings of IRM must be a list of tables"),
        ({"tables.toml": ""}, [], 'such as images-01-small, not "tables".'),
        ({"tables-05-x.toml": "[algorithm]"}, [], "algorithm is no part of a world; known are data, model, training."),
        ({"tables-05-x.toml": "[data]\nbenchmark = 'planted'\nrow = 1"}, [], "data.row is not a setting; did you mean"),
        ({"tables-05-x.toml": "[data]\nbenchmark = 'random'"}, [], 'benchmark = "random" has no version without its'),
    ],
)
def test_mistakes_are_said_in_one_sentence(
    change: dict[str, str | None],
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write(tmp_path / "worlds")
    for name, text in change.items():
        (folder / name).unlink(missing_ok=True)
        if text is not None:
            (folder / name).write_text(text)
    assert run(folder, tmp_path / "out", *arguments) == 2
    told = capsys.readouterr().err
    assert sentence in told and told.startswith("error: ") and told.count("\n") == 1


def test_a_table_of_worlds_without_runs_says_how_to_make_them(tmp_path: Path) -> None:
    (tmp_path / ABOUT).write_text('{"methods": ["FedAvg"], "refused": {}}')
    assert worlds_folder(tmp_path) == tmp_path
    shown = called("table", tmp_path)
    assert shown.returncode == 2 and "`python -m perinvfl.reproduce worlds` makes them" in shown.stderr
    other = called("table", "rc_mnist", "--full")
    assert other.returncode == 2 and "--full is for the table of worlds" in other.stderr
