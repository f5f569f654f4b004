"""Numbers with decimal commas are the numbers they would be with points, wherever a table is read."""

import csv
from pathlib import Path

import pytest
import torch

from perinvfl.data.encoding import Encoding
from perinvfl.data.own.files import read_rows
from perinvfl.data.own.inputs import read_table
from perinvfl.data.own.sites import SitesSettings, site_federation
from perinvfl.data.own.survey import survey
from perinvfl.flower.local_deployment import divide_table
from tests.data.own.small_table import Row, read, refused, rows_of, same, settings_for, write

NUMBERS = ["19,4", "-3,5", "1.234,5", "12", "", ",5", "+2,25E+01"]
POINTS = ["19.4", "-3.5", "1234.5", "12", "", "0.5", "22.5"]


def table(path: Path, cells: list[str], delimiter: str = ";") -> Path:
    rows = [[*row[:2], cells[i % len(cells)], *row[3:]] for i, row in enumerate(rows_of())]
    return write(path, rows, delimiter=delimiter)


@pytest.mark.parametrize(("delimiter", "ending"), [(";", "csv"), ("\t", "csv"), ("\t", "tsv")])
def test_the_same_numbers_as_with_points(tmp_path: Path, delimiter: str, ending: str) -> None:
    path = table(tmp_path / f"t.{ending}", NUMBERS, delimiter)
    same(read(path), read(table(tmp_path / "points.csv", POINTS, ",")))
    assert read_rows(settings_for(path)).notes == ("a: read as numbers with decimal commas, so 19,4 is 19.4",)
    assert survey(settings_for(path))["reading"] == list(read_rows(settings_for(path)).notes)


def test_a_label_is_a_number_and_a_client_is_a_name(tmp_path: Path) -> None:
    rows = [[f"{i % 2},5", *row[1:4], f"{i},25"] for i, row in enumerate(rows_of())]
    made = read_rows(settings_for(write(tmp_path / "t.csv", rows, delimiter=";")))
    assert made.task == "regression" and float(made.y[3]) == 3.25 and made.clients == ("0,5", "1,5")


@pytest.mark.parametrize(
    ("cells", "delimiter", "why"),
    [
        (["19,4", "3,1", "low"], ";", '"19,4" looks like a number with a decimal comma and "low" does not'),
        (["19,4", "3,1", "3.25"], ";", '"19,4" looks like a number with a decimal comma and "3.25" does not'),
        (["1,234", "2,500", "12"], "\t", '"1,234" may be 1.234 or 1234; write it without the comma'),
        (["19,4", "3,1", "5"], ",", "not read where commas separate the cells; save the file with semicolons"),
    ],
)
def test_what_is_doubtful_stays_text_and_is_said(tmp_path: Path, cells: list[str], delimiter: str, why: str) -> None:
    found = read_rows(settings_for(table(tmp_path / "t.csv", cells, delimiter)))
    assert found.levels[0] and set(found.levels[0]) == set(cells)
    assert len(found.notes) == 1 and found.notes[0].startswith("a: ") and why in found.notes[0]


def test_text_with_a_comma_is_text(tmp_path: Path) -> None:
    made = read_rows(settings_for(table(tmp_path / "t.csv", ["Oslo, north", "Oslo, south", "3,5"])))
    assert made.levels[0] == ("3,5", "Oslo, north", "Oslo, south") and made.notes == ()


def test_a_refused_column_looks_like_decimal_commas(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", [*(f"{i},5" for i in range(70)), "none taken"])
    assert "too many for a category, and looks like numbers with decimal commas; name it in ignore" in refused(path)


A, B = Encoding("a"), Encoding("b", levels=("1", "2.5"), codes=(1.0, 2.5))


def file_to_predict(path: Path, cells: list[Row], delimiter: str = ";") -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([["a", "b"], *cells])
    return path


def test_a_file_to_predict_is_read_as_the_model_was_trained(tmp_path: Path) -> None:
    path = file_to_predict(tmp_path / "new.csv", [["19,4", "2,5"], ["unknown", "1"], ["7", "high"]])
    found = read_table(path, [A, B])
    assert found.x[[0, 2]].tolist() == torch.tensor([[19.4, 2.5], [7.0, B.unseen]]).tolist()
    assert [str(fault) for _, fault in found.unusable] == ['line 3, column "a": "unknown" is not a number']
    assert found.notes == ("a, b: read as numbers with decimal commas, so 19,4 is 19.4",)


def test_a_level_with_a_comma_stays_that_level(tmp_path: Path) -> None:
    path = file_to_predict(tmp_path / "new.csv", [["1", "0,5"], ["2", "0,5"]])
    spelt = Encoding("b", levels=("0,5", "high"), codes=(0.0, 1.0))
    assert read_table(path, [A, spelt]).x[:, 1].tolist() == [0.0, 0.0]


def test_two_ways_to_write_numbers_are_not_guessed_at(tmp_path: Path) -> None:
    found = read_table(file_to_predict(tmp_path / "new.csv", [["19,4", "1"], ["1.234", "1"]]), [A, B])
    assert [row for row, _ in found.unusable] == [0] and '"1.234" does not' in found.notes[0]


def test_sites_get_the_same_numbers(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", NUMBERS)
    _, files = divide_table(settings_for(path), tmp_path)
    whole = read_rows(settings_for(path))
    for number, file in enumerate(files):
        own = read_rows(settings_for(file)).x
        assert torch.equal(own.nan_to_num(-1), whole.x[whole.client == number].nan_to_num(-1))


def test_a_site_reads_its_own_file_so(tmp_path: Path) -> None:
    settings = SitesSettings(label="y", client="site", context="year", classes=("0", "1"))
    path = table(tmp_path / "t.csv", NUMBERS)
    mine = [row for row in path.read_text().splitlines() if row.startswith(("site", "s0"))]
    path.write_text("\n".join(mine) + "\n")
    points = tmp_path / "points.csv"
    points.write_text(path.read_text().replace("1.234,5", "1234,5").replace(",", ".").replace(";", ","))
    same(site_federation(settings, path, seed=0), site_federation(settings, points, seed=0))


def test_a_declared_category_keeps_its_spelling(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", ["1,1", "1,10", "2,3"])
    assert read_rows(settings_for(path, categories=["a"])).levels[0] == ("1,1", "1,10", "2,3")
