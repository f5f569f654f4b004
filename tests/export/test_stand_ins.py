"""Numbers that stand for a missing value give what gaps give, on every path: runs, sessions, exported files, sites."""

import csv
import io
import math
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

import perinvfl as pf
from perinvfl.cli import call
from perinvfl.core import checkpoint
from perinvfl.export.formats import FORMATS, read_model
from perinvfl.runs.loaded import open_run
from perinvfl.runs.records import CHECKPOINT
from tests.data.own.patients import COLUMNS, HEADER, patients
from tests.data.own.small_table import write
from tests.flower.deployed import deploy
from tests.flower.test_columns import at_sites

MODEL = '[model]\nhidden = [6]\n[training]\nrounds = 8\n[[algorithm]]\nname = "ditto"\nlearning_rate = 0.3\n'
DATA = 'label = "ill"\nclient = "hospital"\ncontext = "year"\ntest_contexts = [2022]\ncategories = ["cp"]\n'
DECLARED = "missing_values = { chol = [0, 999.5], cp = -9 }\n"
VALUES = {"chol": [0, 999.5], "cp": -9}
NEW = [["64", "0", "1", "north"], ["50", "999.5", "-9", "south"], ["41", "0.0", "3", "north"], ["70", "260", "2", ""]]
RAW = [[64, 0, 1, 0], [50, 999.5, -9, 1], [41, 0, 3, 0], [70, 260, 2, math.nan]]


def with_gaps() -> list[list[Any]]:
    """Every seventh chest pain is missing besides."""
    return [[*row[:4], "" if k % 7 == 3 else row[4], *row[5:]] for k, row in enumerate(patients())]


def with_stand_ins(rows: list[list[Any]]) -> list[list[Any]]:
    chol = ["0", "999.5"]
    return [
        [*row[:3], row[3] or chol[k % 2], "-9.0" if row[4] == "" else row[4], *row[5:]] for k, row in enumerate(rows)
    ]


def train(folder: Path, rows: list[list[Any]], declared: str = "") -> Path:
    folder.mkdir()
    write(folder / "t.csv", rows, HEADER)
    (folder / "x.toml").write_text(f'name = "x"\n[data]\nbenchmark = "file"\npath = "t.csv"\n{DATA}{declared}{MODEL}')
    assert call(["run", str(folder / "x.toml"), "--out", str(folder / "runs"), "--quiet"]) == 0
    return next((folder / "runs").rglob("events.jsonl")).parent


def test_stand_ins_are_gaps_on_every_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = with_gaps()
    gaps, run = train(tmp_path / "gaps", rows), train(tmp_path / "numbers", with_stand_ins(rows), DECLARED)
    theirs, ours = (checkpoint.load(folder / CHECKPOINT) for folder in (gaps, run))
    assert all(torch.equal(ours[name], leaf) for name, leaf in theirs.items() if name != "seconds")
    notes: Any = open_run(run).run.notes["encoding"]
    assert notes["missing"] == open_run(gaps).run.notes["encoding"]["missing"]
    assert notes["missing_values"] == {"chol": [0, 999.5], "cp": [-9]}

    federation = pf.load(
        tmp_path / "numbers/t.csv", label="ill", client="hospital", context="year", test_contexts=[2022],
        categories=["cp"], missing_values=VALUES,
    )  # fmt: skip
    session = pf.start(federation, pf.algorithm("ditto", learning_rate=0.3), rounds=8, model={"hidden": [6]}).run()
    frame = pandas.DataFrame(NEW, columns=list(COLUMNS))
    want = session.predict_proba(frame, "h1")
    empty = [[age, "" if chol in ("0", "0.0", "999.5") else chol, cp.replace("-9", ""), u] for age, chol, cp, u in NEW]
    assert torch.equal(session.predict_proba(pandas.DataFrame(empty, columns=list(COLUMNS)), "h1"), want)
    torch.testing.assert_close(session.predict_proba(torch.tensor(RAW), "h1"), want)
    assert torch.equal(pf.resume(session.save(tmp_path / "saved")).predict_proba(frame, "h1"), want)

    table = write(tmp_path / "new.csv", NEW, list(COLUMNS))
    for form in FORMATS:
        file = tmp_path / f"m.{form}"
        assert call(["export", str(run), "--client", "h1", "-o", str(file)]) == 0
        torch.testing.assert_close(read_model(file)(torch.tensor(RAW))["probability"], want, atol=1e-5, rtol=1e-4)
        capsys.readouterr()
        assert call(["predict", str(file), str(table)]) == 0
        said = [float(row["probability 1"]) for row in csv.DictReader(io.StringIO(capsys.readouterr().out))]
        assert said == pytest.approx(want[:, 1].tolist(), abs=1e-5)
    assert "0 and 999.5 stand for a missing value in `chol`" in (tmp_path / "m.onnx.md").read_text()


def test_sites_treat_them_alike(tmp_path: Path) -> None:
    rows = with_gaps()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    trial, post = at_sites(tmp_path / "a", rows)
    gaps = deploy(trial, tmp_path / "a", transport=post)
    trial, post = at_sites(tmp_path / "b", with_stand_ins(rows), missing_values=VALUES)
    numbers = deploy(trial, tmp_path / "b", transport=post)
    fitted = numbers.agreement.fitted
    assert fitted is not None
    assert {one["name"]: one["missing_values"] for one in fitted["encodings"] if one["missing_values"]} == {
        "chol": (0.0, 999.5),
        "cp": (-9.0,),
    }
    assert all(torch.equal(numbers.server.params[name], leaf) for name, leaf in gaps.server.params.items())


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("missing_values = { cholesterl = 0 }", 'names "cholesterl", no feature; known are age, chol'),
        ("missing_values = { unit = 0 }", '"unit", which holds text'),
        ('missing_values = { chol = "none" }', "must be a number"),
        ("missing_values = [0]", "must be a table of numbers by name"),
        ('missing_values = { chol = 0 }\nmissing = "refuse"', "leave one of them out"),
    ],
)
def test_what_cannot_be_declared(tmp_path: Path, declared: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "t.csv", [[*row[:3], row[3] or 200, row[4], "north", row[6]] for row in patients()], HEADER)
    (tmp_path / "x.toml").write_text(f'[data]\nbenchmark = "file"\npath = "t.csv"\n{DATA}{declared}\n{MODEL}')
    assert call(["run", str(tmp_path / "x.toml"), "--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
