"""A column that `recommended` leaves out need not be in what is to be predicted, and may hold anything there."""

from pathlib import Path

import pandas
import pytest

import perinvfl
from perinvfl.cli import call
from perinvfl.errors import UserError
from tests.export.own_table import ALL, EXPERIMENT, rows_of, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unread")
    write(folder / "past.csv", rows_of(1), *ALL)
    (folder / "own.toml").write_text(EXPERIMENT)
    assert call(["run", str(folder / "own.toml"), "--out", str(folder / "runs")]) == 0
    return folder


def test_a_file_without_the_column_or_with_other_things_in_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "north.onnx"
    assert call(["export", str(folder / "runs"), "--client", "north", "-o", str(model)]) == 0
    whole = write(tmp_path / "whole.csv", rows_of(2), "age", "form")
    bare = write(tmp_path / "bare.csv", rows_of(2), "age")
    odd = write(tmp_path / "odd.csv", [row | {"form": "no longer used"} for row in rows_of(2)], "form", "age")
    said = []
    for asked in ([str(model)], [str(folder / "runs"), "--client", "north"]):
        for file in (whole, bare, odd):
            capsys.readouterr()
            assert call(["predict", *asked, str(file)]) == 0
            said.append(capsys.readouterr())
    assert len({one.out for one in said[:3]}) == 1 and len({one.out for one in said[3:]}) == 1
    assert not any("could not be used" in one.err for one in said)
    nothing = write(tmp_path / "nothing.csv", rows_of(2), "form")
    assert call(["predict", str(model), str(nothing)]) == 2
    assert "has no column age" in capsys.readouterr().err


def test_a_data_frame_without_the_column(folder: Path) -> None:
    past = perinvfl.load(folder / "past.csv", label="ill", client="site", context="year", test_contexts=["2023"])
    session = perinvfl.start(past, rounds=6, model={"hidden": [8]})
    session.run()
    frame = pandas.DataFrame(rows_of(2))
    frame["age"] = pandas.to_numeric(frame["age"])
    whole = session.predict_proba(frame[["age", "form"]], client="north")
    assert session.predict_proba(frame[["age"]], client="north").equal(whole)
    with pytest.raises(UserError, match='"age" is missing'):
        session.predict(frame[["form"]], client="north")
