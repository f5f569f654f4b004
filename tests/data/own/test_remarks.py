"""What `data check` remarks about columns and clients: identifiers, numbers that stand for missing ones, leaks."""

import random
from pathlib import Path
from typing import Any

import pytest

from perinvfl.cli import call
from perinvfl.core.config import build
from perinvfl.data.own.fault_groups import group_faults
from perinvfl.data.own.files import FileSettings
from perinvfl.data.own.rows import Fault
from perinvfl.data.own.survey import survey
from tests.data.own.small_table import write

ROWS = 300
SITES = "abc"


def surveyed(folder: Path, rows: int = ROWS, **columns: Any) -> dict[str, Any]:
    """Of a table with these columns besides site, y and a harmless x; each a function of row, site, label and draw."""
    draw = random.Random(0)
    table = []
    for row in range(rows):
        site, label = SITES[row % 3], draw.randrange(2)
        made = [column(row, site, label, draw) for column in columns.values()]
        table.append([site, label, f"{draw.gauss(0, 1):.3f}", *made])
    path = write(folder / "t.csv", table, ["site", "y", "x", *columns])
    given = {"path": str(path), "label": "y", "client": "site", "context": ""}
    return survey(build(FileSettings, given, "data"))


def remark(folder: Path, column: Any, kind: str, name: str = "c") -> str:
    """What is remarked of this kind about the column; empty where nothing is."""
    found = surveyed(folder, **{name: column})
    assert not [r for r in found["remarks"] if r["column"] == "x"], "x is harmless"
    return "".join(r["what"] for r in found["remarks"] if r["column"] == name and r["kind"] == kind)


@pytest.mark.parametrize(
    ("column", "name", "words"),
    [
        (lambda i, s, y, d: 1000 + i, "c", "rises from row to row"),
        (lambda i, s, y, d: 5000 - 2 * i, "c", "falls from row to row"),
        (lambda i, s, y, d: (i * 7919) % 100003, "c", "300 different whole numbers in 300 rows"),
        (
            lambda i, s, y, d: 5 if i < 9 else (i * 7919) % 100003,
            "PatientID",
            "292 different whole numbers in 300 rows",
        ),
        (lambda i, s, y, d: 5 if i < 9 else (i * 7919) % 100003, "platelets", ""),
        (lambda i, s, y, d: d.gauss(0, 1), "c", ""),
        (lambda i, s, y, d: d.randrange(20, 90), "id", ""),
    ],
)
def test_identifiers(tmp_path: Path, column: Any, name: str, words: str) -> None:
    told = remark(tmp_path, column, "identifier", name)
    assert words in told and bool(words) == bool(told)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (
            lambda i, s, y, d: 0 if s == "b" else d.randrange(120, 300),
            "0 stands in 100 of 300 rows (100 of 100 at b; none",
        ),
        (lambda i, s, y, d: -999 if i in (7, 90, 200) else d.randrange(20, 90), "-999 stands in 3 of 300 rows"),
        (lambda i, s, y, d: 9999 if i == 7 else d.gauss(50, 5), "9999 stands in 1 of 300 rows"),
        (lambda i, s, y, d: 5.5 if s == "c" and i % 4 else d.gauss(5, 1), "5.5 stands in"),
        (lambda i, s, y, d: 0 if s == "b" and i % 10 < 4 else d.lognormvariate(1, 0.8), "0 stands in"),
        (lambda i, s, y, d: max(0, round(d.gauss(0, 10))), ""),  # a clipped amount
        (lambda i, s, y, d: d.paretovariate(1), ""),  # a long tail
        (lambda i, s, y, d: d.randrange(4), ""),  # few values
        (lambda i, s, y, d: d.gauss(50, 5) + (20 if s == "a" else 0), ""),  # a client that differs
    ],
)
def test_numbers_that_stand_for_missing_ones(tmp_path: Path, column: Any, words: str) -> None:
    told = remark(tmp_path, column, "stand-in")
    assert words in told and bool(words) == bool(told)


def test_columns_that_tell_the_client_or_the_label(tmp_path: Path) -> None:
    assert "identifies the client" in remark(tmp_path, lambda i, s, y, d: {"a": 1, "b": 2, "c": 2}[s], "client")
    assert not remark(tmp_path, lambda i, s, y, d: d.randrange(2), "client")
    assert "gives the label away" in remark(tmp_path, lambda i, s, y, d: 2 * y + d.randrange(2), "label")
    assert not remark(tmp_path, lambda i, s, y, d: y if i else 1 - y, "label")


def of_prevalence(folder: Path, shares: dict[str, float], each: int) -> dict[str, Any]:
    rows = [
        [site, int(k < share * each), f"{random.Random(site + str(k)).gauss(0, 1):.3f}"]
        for site, share in shares.items()
        for k in range(each)
    ]
    path = write(folder / "t.csv", rows, ["site", "y", "x"])
    return survey(build(FileSettings, {"path": str(path), "label": "y", "client": "site", "context": ""}, "data"))


def test_a_label_that_the_client_alone_predicts(tmp_path: Path) -> None:
    found = of_prevalence(tmp_path, {"north": 0.1, "south": 0.9}, 100)
    (told,) = [warning for warning in found["warnings"] if "client alone" in warning]
    assert "90.0 % of the rows" in told and "most frequent label: 50.0 %" in told
    assert '"1" is 10 % at north and 90 % at south' in told
    assert found["from_client"]["accuracy"] == pytest.approx(0.9)
    assert found["from_client"]["auroc"] == pytest.approx(0.9, abs=0.01)  # (81 + (9 + 9) / 2) / 100
    rare = of_prevalence(tmp_path, {"north": 0.0, "south": 0.4}, 100)  # the most frequent label is the same at both
    assert rare["from_client"]["accuracy"] == rare["from_client"]["constant"] == pytest.approx(0.8)
    assert any("AUROC 0.81" in warning for warning in rare["warnings"])  # (40 * 100 + 40 * 60 / 2) / (40 * 160)
    same = of_prevalence(tmp_path, {"north": 0.4, "south": 0.5}, 100)
    assert not [warning for warning in same["warnings"] if "client alone" in warning]


def test_small_clients_of_equal_labels_tell_nothing(tmp_path: Path) -> None:
    draw = random.Random(1)
    rows = [[f"s{k // 2}", draw.randrange(2), draw.gauss(0, 1)] for k in range(400)]
    path = write(tmp_path / "t.csv", rows, ["site", "y", "x"])
    found = survey(build(FileSettings, {"path": str(path), "label": "y", "client": "site", "context": ""}, "data"))
    assert not [warning for warning in found["warnings"] if "client alone" in warning]


def test_a_quantity_that_the_client_explains(tmp_path: Path) -> None:
    draw = random.Random(1)
    rows = [[site, 10 * "abc".index(site) + draw.gauss(0, 1), draw.gauss(0, 1)] for site in SITES for _ in range(50)]
    path = write(tmp_path / "t.csv", rows, ["site", "y", "x"])
    found = survey(build(FileSettings, {"path": str(path), "label": "y", "client": "site", "context": ""}, "data"))
    assert found["from_client"]["explained"] > 0.95
    assert any("of the label's variance" in warning and "at c" in warning for warning in found["warnings"])


def test_faults_are_grouped_whole_file_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = [
        *(Fault(f"line {k}", "b", f'"oops{k % 2}" is not a number') for k in range(2, 9)),
        Fault("line 3", "", "has 6 cells where the first line names 5 columns"),
        Fault("line 4", "", "has 6 cells where the first line names 5 columns"),
        Fault("", "", 'there is no column "site"'),
        *(Fault(f"line {k}", "y", "the label is missing") for k in (5, 6)),
        Fault("line 9", "b", '"1e99" is too large'),
    ]
    assert [group.message for group in group_faults(faults, 50)] == [
        'there is no column "site"',
        "2 rows: has 6 cells where the first line names 5 columns (line 3, line 4)",
        'b: 7 of 50 cells are not numbers ("oops0", "oops1"; line 2, line 3, line 4, ...)',
        'line 9, column "b": "1e99" is too large',
        "y: 2 of 50 missing (line 5, line 6)",
    ]
    rows = [["ab"[k % 2], "" if k < 3 else k % 2, "oops" if k > 18 else k * 1.5] for k in range(24)]
    path = write(tmp_path / "t.csv", rows, ["site", "y", "x"])
    assert call(["data", "check", str(path), "--label", "y", "--client", "site", "--context", ""]) == 2
    shown = capsys.readouterr().out
    assert "wrong: y: 3 of 24 missing (line 2, line 3, line 4)" in shown
    assert 'wrong: x: 5 of 24 cells are not numbers ("oops"; line 21, line 22, line 23, ...)' in shown
    assert "Shown are the 16 of 24 rows" in shown
