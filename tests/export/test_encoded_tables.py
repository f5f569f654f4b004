"""A table with gaps and categories: the same predictions from a session, a run, every exported file and `predict`."""

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
import pandas
import pytest
import torch

import perinvfl as pf
from perinvfl.cli import call
from perinvfl.export.formats import FORMATS, read_model
from perinvfl.runs.loaded import open_run
from tests.data.own.patients import COLUMNS, HEADER, patients
from tests.data.own.small_table import write

MODEL = '[model]\nhidden = [6]\n[training]\nrounds = 8\n[[algorithm]]\nname = "ditto"\nlearning_rate = 0.3\n'
DATA = 'label = "ill"\nclient = "hospital"\ncontext = "year"\ntest_contexts = [2022]\ncategories = ["cp"]\n'
NEW = [  # id, age, chol, cp, unit: gaps, unseen levels, and two rows that cannot be used
    ["p1", "64", "240.5", "1", "north"],
    ["p2", "", "", "", ""],
    ["p3", "50", "NA", "7", "elsewhere"],
    ["p4", "forty", "200", "2", "south"],
    ["p5", "41", "180", "3.0", "rare 0"],
    ["p6", "41", "inf", "3", "south"],
]
USABLE = [0, 1, 2, 4]
RAW = [[64, 240.5, 1, 0], [math.nan] * 4, [50, math.nan, 7, -1], [41, 180, 3, -1]]  # as exported models take them


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoded")
    write(folder / "t.csv", patients(), HEADER)
    (folder / "x.toml").write_text(f'name = "x"\n[data]\nbenchmark = "file"\npath = "t.csv"\n{DATA}{MODEL}')
    assert call(["run", str(folder / "x.toml"), "--out", str(folder / "runs"), "--quiet"]) == 0
    return next((folder / "runs").rglob("events.jsonl")).parent


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "new.csv", NEW, ["patient", *COLUMNS])


def session_answers(run: Path, folder: Path) -> torch.Tensor:
    """Of a session in memory, and of the same one resumed, for a data frame."""
    federation = pf.load(
        run.parents[2] / "t.csv", label="ill", client="hospital", context="year", test_contexts=[2022],
        categories=["cp"],
    )  # fmt: skip
    algorithm = pf.algorithm("ditto", learning_rate=0.3)
    session = pf.start(federation, algorithm, rounds=8, model={"hidden": [6]}).run()
    frame = pandas.DataFrame([NEW[row][1:] for row in USABLE], columns=list(COLUMNS))
    said = session.predict_proba(frame, "h1")
    resumed = pf.resume(session.save(folder / "saved"))
    assert torch.equal(resumed.predict_proba(frame, "h1"), said)
    torch.testing.assert_close(session.predict_proba(torch.tensor(RAW), "h1"), said)
    return said


def test_the_same_predictions_on_every_path(
    run: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    want = session_answers(run, tmp_path)
    assert float(want[:, 1].std()) > 0.01, "rows that all have the same answer would prove nothing"
    sources: list[list[str]] = [[str(run), "--client", "h1"]]
    for form in FORMATS:
        file = tmp_path / f"m.{form}"
        assert call(["export", str(run), "--client", "h1", "-o", str(file)]) == 0
        sources.append([str(file)])
        torch.testing.assert_close(read_model(file)(torch.tensor(RAW))["probability"], want, atol=1e-5, rtol=1e-4)
    onnx = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    found = onnx.run(["probability"], {"x": numpy.array(RAW, "float32")})[0]
    torch.testing.assert_close(torch.from_numpy(found), want, atol=1e-5, rtol=1e-4)
    pt2 = torch.export.load(tmp_path / "m.pt2").module()(torch.tensor(RAW))[1]
    torch.testing.assert_close(pt2, want, atol=1e-5, rtol=1e-4)
    numpy.savez(tmp_path / "raw.npz", x=numpy.array(RAW), who=numpy.array([NEW[row][0] for row in USABLE]))
    for model, *options in sources:
        capsys.readouterr()
        assert call(["predict", model, str(table), *options, "--id", "patient"]) == 0
        shown = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert [row["patient"] for row in shown] == [row[0] for row in NEW]
        said = [float(shown[row]["probability 1"]) for row in USABLE]
        assert said == pytest.approx(want[:, 1].tolist(), abs=1e-5)
        assert call(["predict", model, str(tmp_path / "raw.npz"), *options, "--id", "who"]) == 0
        shown = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert [float(row["probability 1"]) for row in shown] == pytest.approx(said, abs=1e-6)
        assert [row["who"] for row in shown] == [NEW[row][0] for row in USABLE]


def test_rows_that_cannot_be_used_are_told(
    run: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["predict", str(run), str(table), "--client", "h1"]
    assert call([*asked, "--id", "patient"]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "2 of 6 rows could not be used and have no prediction:",
        '  line 5, column "age": "forty" is not a number',
        '  line 7, column "chol": "inf" is not a finite number',
    ]
    shown = list(csv.DictReader(io.StringIO(printed.out)))
    assert shown[3]["prediction"] == "" and "forty" in shown[3]["why there is no prediction"]
    assert shown[0]["why there is no prediction"] == ""
    assert call([*asked, "--id", "patient", "-o", str(tmp_path / "o.npz")]) == 0
    with numpy.load(tmp_path / "o.npz") as found:
        assert found["rows"].tolist() == USABLE and found["id"].tolist() == ["p1", "p2", "p3", "p5"]
        assert len(found["prediction"]) == 4
    capsys.readouterr()
    assert call([*asked, "--id", "patent"]) == 2
    assert 'has no column "patent" to be the id; did you mean patient?' in capsys.readouterr().err
    write(table, [NEW[0], ["p7", "50"]], ["patient", *COLUMNS])
    assert call([*asked, "--id", "patient"]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("p7,,,,line 3: has 2 cells")
    write(table, [NEW[3][1:], NEW[5][1:]], list(COLUMNS))
    assert call(asked) == 2
    assert "(1 more rows, none of them usable)" in capsys.readouterr().err


def test_the_record_and_the_card_say_what_was_encoded(run: Path, tmp_path: Path) -> None:
    rows = patients()
    notes: Any = open_run(run).run.notes["encoding"]
    assert notes["missing"]["chol"] == sum(row[3] == "" for row in rows) and notes["rows"] == len(rows)
    assert call(["export", str(run), "--client", "h1", "-o", str(tmp_path / "m.pt2")]) == 0
    card = (tmp_path / "m.pt2.md").read_text()
    assert "A missing value is NaN" in card and "was missing in `chol`, `unit`" in card
    assert "`unit` is a category: 0 = north, 1 = south; any other number: other." in card
    assert "`cp` is a category: 1, 2, 3; any other" in card


def test_the_card_tells_no_folder_and_a_constant_for_every_test(run: Path, tmp_path: Path) -> None:
    assert call(["export", str(run), "--client", "h1", "-o", str(tmp_path / "m.pt2")]) == 0
    card = (tmp_path / "m.pt2.md").read_text()
    assert "| data.path | `t.csv` |" in card and str(run.parents[2]) not in card
    opened = open_run(run)
    client, validation = opened.clients.index("h1"), opened.federation.validation
    assert validation is not None
    labels = {name: part.y[client][part.context[client] >= 0]
              for name, part in (("train", opened.federation.train), ("validation", validation))}  # fmt: skip
    constant = 100 * float((labels["validation"] == labels["train"].mode().values).float().mean())
    model = 100 * opened.run.evaluations[-1]["personal"]["validation"][client]
    said = "validation: rows like those trained on, held out"
    assert f"| {said} | {model:.2f} | {constant:.2f} |" in card
