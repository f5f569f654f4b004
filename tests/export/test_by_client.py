"""`perinvfl predict RUNS FILE --client-column NAME`: each row by the model of its own client."""

import csv
from pathlib import Path

import pytest

from perinvfl.cli import call
from tests.export.own_table import ALL, EXPERIMENT, rows_of, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("by-client")
    write(folder / "past.csv", rows_of(1), *ALL)
    (folder / "own.toml").write_text(EXPERIMENT.replace("recommended", "ditto") + '[[algorithm]]\nname = "alone"\n')
    assert call(["run", str(folder / "own.toml"), "--out", str(folder / "runs")]) == 0
    return folder


def predicted(folder: Path, file: Path, *options: str) -> list[dict[str, str]]:
    out = file.with_suffix(".answers.csv")
    assert call(["predict", str(folder / "runs"), str(file), *options, "--id", "year", "-o", str(out)]) == 0
    return list(csv.DictReader(out.read_text().splitlines()))


def test_each_row_as_its_own_client_would_have_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*rows_of(2)[::7], *(row | {"site": "east"} for row in rows_of(3)[:10])]
    rows[5] = rows[5] | {"age": "old"}
    file = write(tmp_path / "new.csv", rows, "form", "site", "age", "year")
    capsys.readouterr()
    together = predicted(folder, file, "--method", "Ditto", "--client-column", "site")
    said = capsys.readouterr().err
    assert "took no part in training: east (10 rows). The shared model answers for them." in said and "line 7" in said
    each = {site: predicted(folder, file, "--method", "Ditto", "--client", site) for site in ("north", "south", "west")}
    each["east"] = predicted(folder, file, "--method", "Ditto", "--global")
    assert together == [each[row["site"]][place] for place, row in enumerate(rows)]
    assert any(each["north"][place] != answer for place, answer in enumerate(together))


def test_a_new_client_without_a_shared_model_has_no_prediction(folder: Path, tmp_path: Path) -> None:
    rows = [*rows_of(2)[:4], *(row | {"site": "east"} for row in rows_of(3)[:2])]
    answers = predicted(folder, write(tmp_path / "new.csv", rows, *ALL), "--method", "Alone", "--client-column", "site")
    assert [bool(row["prediction"]) for row in answers] == [True] * 4 + [False] * 2
    assert (
        "line 6" in answers[4]["why there is no prediction"] and "no shared model" in answers[4][list(answers[4])[-1]]
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--client-column", "sit"], 'no column "sit"; did you mean site?'),
        (["--client-column", "site", "--client", "north"], "leave --client and --global out"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    options: list[str], words: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "new.csv", rows_of(2)[:4], *ALL)
    assert call(["predict", str(folder / "runs"), str(file), "--method", "Ditto", *options]) == 2
    assert words in capsys.readouterr().err


def test_an_exported_file_is_one_model(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, file = tmp_path / "north.onnx", write(tmp_path / "new.csv", rows_of(2)[:4], *ALL)
    assert call(["export", str(folder / "runs"), "--method", "Ditto", "--client", "north", "-o", str(model)]) == 0
    assert call(["predict", str(model), str(file), "--client-column", "site"]) == 2
    assert "holds one model" in capsys.readouterr().err
