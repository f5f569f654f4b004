"""Names that may be typing mistakes are pointed out: rare classes, and small clients beside a namesake."""

from pathlib import Path
from typing import Any

import pytest

from perinvfl.data.own.notes import nearly_the_same, notes_on
from tests.data.own.small_table import Row, rows_of, settings_for, write


def notes(tmp_path: Path, rows: list[Row], **more: Any) -> list[str]:
    return notes_on(settings_for(write(tmp_path / "t.csv", rows), **more))


def labelled(odd: dict[int, str], each: int = 10) -> list[Row]:
    return rows_of(each=each, label=lambda i: odd.get(i, ("no", "yes")[i % 2]))


def test_a_class_in_one_row(tmp_path: Path) -> None:
    assert notes(tmp_path, labelled({})) == []
    assert notes(tmp_path, labelled({7: "yse"})) == [
        'y: "yse" stands in 1 of 90 rows; if that is a typing mistake, correct the file; if it is a class, name all '
        'classes (classes = ["no", "yes", "yse"])'
    ]
    assert notes(tmp_path, labelled({7: "yse"}), classes=["no", "yes", "yse"]) == []
    assert notes(tmp_path, labelled({7: "dead"})) == []  # one of 90 may well be so rare
    assert '"dead" stands in 1 of 180 rows' in notes(tmp_path, labelled({7: "dead"}, each=20))[0]
    assert notes(tmp_path, labelled({row: "dead" for row in range(5)}, each=100)) == []
    many = labelled({row: f"rare {row}" for row in range(12)}, each=200)
    assert notes(tmp_path, many) == ["y: 12 of 14 classes stand in fewer than 5 rows each"]


def test_a_client_with_hardly_any_row_beside_a_namesake(tmp_path: Path) -> None:
    rows = [["St. Marien" if row[0] == "s0" else row[0], *row[1:]] for row in rows_of(each=20)]
    assert notes(tmp_path, rows) == []
    for name in ("St Marien", "St. Marein", "ST. MARIEN", "St. Maria"):
        found = notes(tmp_path, [[name, *rows[0][1:]], *rows[1:]])
        alike = name != "St. Maria"
        assert len(found) == alike and all(
            f'site: "{name}" has 1 row and "St. Marien" 59; if they are the same client' in note for note in found
        )
    assert notes(tmp_path, [["s3", *rows[0][1:]], *rows[1:]]) == []  # another number is another client


@pytest.mark.parametrize(("one", "other"), [("A+", "A-"), ("<5", ">5"), ("+", "-"), ("", "x"), ("100 mg", "10 mg")])
def test_signs_and_digits_make_another_name(one: str, other: str) -> None:
    assert not nearly_the_same(one, other)
