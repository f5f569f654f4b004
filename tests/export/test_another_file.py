"""`perinvfl table RUNS --on FILE`: the models of finished runs on another labelled file."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from perinvfl.cli import call
from tests.export.own_table import ALL, EXPERIMENT, Row, rows_of, write

BASELINES = '[[algorithm]]\nname = "fedavg"\n[[algorithm]]\nname = "alone"\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("another")
    write(folder / "past.csv", rows_of(1), *ALL)
    (folder / "own.toml").write_text(EXPERIMENT + BASELINES)
    assert call(["run", str(folder / "own.toml"), "--out", str(folder / "runs")]) == 0
    return folder


def table(capsys: pytest.CaptureFixture[str], *asked: object) -> dict[str, Any]:
    capsys.readouterr()
    assert call(["table", *map(str, asked), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def by_hand(folder: Path, file: Path, rows: list[Row], method: str, sites: dict[str, list[str]]) -> float:
    """Mean over sites of the share that `perinvfl predict` has right, with the options that go with each site."""
    shares = []
    for site, options in sites.items():
        out = file.with_name(f"{site}.csv")
        assert call(["predict", str(folder / "runs"), str(file), "--method", method, *options, "-o", str(out)]) == 0
        said = [row["prediction"] for row in csv.DictReader(out.read_text().splitlines())]
        own = [(row["ill"], answer) for row, answer in zip(rows, said, strict=True) if row["site"] == site]
        shares.append(sum(label == answer for label, answer in own) / len(own))
    return 100 * sum(shares) / len(shares)


def value(found: dict[str, Any], method: str, case: str) -> float:
    (row,) = [row for row in found["rows"] if row["method"] == method]
    share: float = row["cases"][case]["mean"]
    return share


def test_each_row_is_answered_by_the_model_of_its_own_client(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also without the year, and without the form, which `recommended` left out; of a new site by the shared model."""
    rows = rows_of(2)[450:] + [row | {"site": "east"} for row in rows_of(3)[:80]]
    later = write(tmp_path / "later.csv", rows, "ill", "age", "site", "form")
    own = {name: ["--client", name] for name in ("south", "west")}
    found = table(capsys, folder / "runs", "--on", later)
    for method in ("Recommended", "FedAvg"):
        expected = by_hand(folder, later, rows, method, own | {"east": ["--global"]})
        assert value(found, method, "later") == pytest.approx(expected, abs=1e-3)
    assert value(found, "Alone", "later") == pytest.approx(by_hand(folder, later, rows, "Alone", own), abs=1e-3)
    assert call(["table", str(folder / "runs"), "--on", str(later), "--format", "md"]) == 0
    notes = capsys.readouterr().out
    assert f"{len(rows)} rows of later.csv, each answered by the model of its own client." in notes
    assert "took no part in training: east (80 rows)" in notes and "Alone has none and is scored without" in notes
    bare = write(tmp_path / "bare.csv", rows, "ill", "age", "site")
    without = table(capsys, folder / "runs", "--on", bare, "--method", "Recommended")
    assert value(without, "Recommended", "bare") == value(found, "Recommended", "later")


def test_numbers_are_read_as_predict_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Codes and clients spelt 1.0, as after a gap, and one cell of text among the codes; the name of the file."""
    numbers = {"north": "1", "south": "2", "west": "10"}
    rows = [
        row
        | {
            "site": numbers[row["site"]],
            "form": "3" if row["form"] == "A" else "4",
            "ill": str(int(row["ill"] == "yes")),
        }
        for row in rows_of(1)
    ]
    write(tmp_path / "past.csv", rows, *ALL)
    asked = EXPERIMENT.replace("recommended", "ditto").replace("[model]", 'categories = ["form"]\n[model]')
    (tmp_path / "own.toml").write_text(asked)
    assert call(["run", str(tmp_path / "own.toml"), "--out", str(tmp_path / "runs")]) == 0
    held_out = [row for row in rows if row["year"] == "2023"]
    spelt = [{**row, **{name: f"{row[name]}.0" for name in ("site", "form", "ill")}} for row in held_out]
    spelt[0]["form"] = "unknown"
    before = value(table(capsys, tmp_path / "runs"), "Ditto", "2023")
    for name in ("validation.csv", "2023.csv"):
        later = write(tmp_path / name, spelt, *ALL)
        found = table(capsys, tmp_path / "runs", "--on", later)
        case = "validation.csv" if name == "validation.csv" else "2023"
        assert value(found, "Ditto", case) == pytest.approx(before, abs=1.0)  # but for the cell that is text


def test_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = numpy.random.default_rng(1)
    x, client = draw.normal(size=(300, 4)), numpy.arange(300) % 3
    numpy.savez(tmp_path / "a.npz", x=x, y=(x[:, 0] > 0).astype(int), client=client, context=client * 0)
    data = '[data]\nbenchmark = "file"\npath = "a.npz"\n[training]\nrounds = 20\n'
    (tmp_path / "a.toml").write_text(
        data + '[model]\nhidden = []\n[[algorithm]]\nname = "fedavg"\nlearning_rate = 1.0\n'
    )
    assert call(["run", str(tmp_path / "a.toml"), "--out", str(tmp_path / "runs")]) == 0
    new = draw.normal(size=(90, 4))
    numpy.savez(tmp_path / "b.npz", x=new, y=(new[:, 0] > 0).astype(int), client=numpy.arange(90) % 3)
    assert value(table(capsys, tmp_path / "runs", "--on", tmp_path / "b.npz"), "FedAvg", "b") > 85


def test_only_a_new_client_and_no_shared_model(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = write(tmp_path / "later.csv", [row | {"site": "east"} for row in rows_of(2)[:60]], *ALL)
    assert call(["table", str(folder / "runs"), "--on", str(later), "--method", "Alone"]) == 2
    assert "holds no row of north, south, west, and no model is shared" in capsys.readouterr().err
    for order in (["FedAvg", "Alone"], ["Alone", "FedAvg"]):  # the constant of all rows, whichever comes first
        mixed = write(
            tmp_path / "mixed.csv", [*rows_of(2)[:60], *(row | {"site": "east"} for row in rows_of(3)[:60])], *ALL
        )
        options = [word for name in order for word in ("--method", name)][:2]
        alone = value(table(capsys, folder / "runs", "--on", mixed), "Constant", "mixed")
        only = value(table(capsys, folder / "runs", "--on", mixed, *options), "Constant", "mixed")
        assert (alone == only) == (order[0] == "FedAvg")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("leave_one_context_out = true", "each fold has models of its own"),
        ('client = ""\nignore = ["site"]\npartition = "even"\npartition_clients = 3', "made-up clients"),
    ],
)
def test_runs_whose_clients_or_contexts_are_no_ones(
    settings: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "past.csv", rows_of(1), *ALL)
    asked = EXPERIMENT.replace("recommended", "fedavg").replace('test_contexts = ["2023"]\n', "")
    asked = asked.replace('client = "site"\n', "") if "client" in settings else asked
    (tmp_path / "own.toml").write_text(asked.replace("[model]", f"{settings}\n[model]"))
    assert call(["run", str(tmp_path / "own.toml"), "--out", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    assert call(["table", str(tmp_path / "runs"), "--on", str(tmp_path / "past.csv")]) == 2
    assert words in capsys.readouterr().err


def test_runs_of_different_labels_are_no_table(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "past.csv", rows_of(1), *ALL)
    for name, label in (("one", "ill"), ("two", "form")):
        (tmp_path / f"{name}.toml").write_text(
            EXPERIMENT.replace("recommended", "fedavg").replace('"ill"', f'"{label}"').replace('"own"', f'"{name}"')
        )
        assert call(["run", str(tmp_path / f"{name}.toml"), "--out", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    assert call(["table", str(tmp_path / "runs"), "--on", str(tmp_path / "past.csv")]) == 2
    assert "different labels or clients (one and two)" in capsys.readouterr().err


def test_scores_that_a_constant_does_not_have_leave_it_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = write(tmp_path / "later.csv", rows_of(2), *ALL)
    for score, there in (("brier", False), ("sensitivity", False), ("balanced", True)):
        found = table(capsys, folder / "runs", "--on", later, "--score", score)
        assert any(row["method"] == "Constant" for row in found["rows"]) == there


def test_its_own_test_rows_have_the_scores_on_record(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = write(tmp_path / "2023.csv", [row for row in rows_of(1) if row["year"] == "2023"], *ALL)
    for score in ("accuracy", "auroc", "sensitivity"):
        before = table(capsys, folder / "runs", "--score", score)
        again = table(capsys, folder / "runs", "--on", held_out, "--score", score)
        for method in ("Recommended", "FedAvg", "Alone"):
            assert value(again, method, "2023") == pytest.approx(value(before, method, "2023"), abs=1e-3), score
        if score != "sensitivity":
            assert value(again, "Constant", "2023") == pytest.approx(value(before, "Constant", "2023"), abs=1e-3)


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (("age", "form", "site"), [], 'no column "ill"'),
        (("age", "form", "ill"), [], 'no column "site"'),
        (ALL, ["--full"], "--full and --on exclude each other"),
        (ALL, ["--rule", "oracle"], "--rule and --on exclude each other"),
        (ALL, ["--score", "r2"], "r2"),
        (ALL, ["--score", "worst-group"], "worst-group"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(
    columns: tuple[str, ...],
    options: list[str],
    words: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write(tmp_path / "later.csv", rows_of(2)[:50], *columns)
    assert call(["table", str(folder / "runs"), "--on", str(file), *options]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1 and "Traceback" not in said


def test_runs_of_other_data_have_no_other_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.toml").write_text(
        '[data]\nbenchmark = "random"\n[training]\nrounds = 2\n[[algorithm]]\nname = "fedavg"\n'
    )
    assert call(["run", str(tmp_path / "r.toml"), "--out", str(tmp_path / "runs")]) == 0
    file = write(tmp_path / "later.csv", rows_of(2)[:50], *ALL)
    assert call(["table", str(tmp_path / "runs"), "--on", str(file)]) == 2
    assert "was not trained on a file of your own" in capsys.readouterr().err


def test_a_regression_in_its_own_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row | {"ill": f"{100 + 3 * float(row['age'] or 60):.2f}"} for row in rows_of(1)]
    write(tmp_path / "past.csv", rows, *ALL)
    experiment = EXPERIMENT.replace("recommended", "fedavg").replace("rounds = 6", "rounds = 60")
    (tmp_path / "own.toml").write_text(experiment)
    assert call(["run", str(tmp_path / "own.toml"), "--out", str(tmp_path / "runs")]) == 0
    held_out = write(tmp_path / "2023.csv", [row for row in rows if row["year"] == "2023"], *ALL)
    for score in ("r2", "mae"):
        before = table(capsys, tmp_path / "runs", "--score", score)
        again = table(capsys, tmp_path / "runs", "--on", held_out, "--score", score)
        assert value(again, "FedAvg", "2023") == pytest.approx(value(before, "FedAvg", "2023"), rel=1e-3)
    assert value(table(capsys, tmp_path / "runs", "--on", held_out), "Constant", "2023") < 0.01
