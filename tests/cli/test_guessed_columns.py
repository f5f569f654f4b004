"""`data check` and `audit` of a table, told nothing about its columns."""

import json
import random
from pathlib import Path

import pytest

from perinvfl.cli import call


@pytest.fixture
def table(tmp_path: Path) -> Path:
    draw, path = random.Random(0), tmp_path / "patients.csv"
    lines = ["Hospital name,year,age,scanner,diseased"]
    for hospital in ("north", "south"):
        for year, share in ((2021, 0.95), (2022, 0.7)):
            for _ in range(100):
                ill = draw.random() < 0.5
                scanner = ill if draw.random() < share else not ill
                lines.append(f"{hospital},{year},{draw.gauss(60 + 8 * ill, 10):.0f},{'xy'[scanner]},{'ny'[ill]}")
    path.write_text("\n".join(lines) + "\n")
    return path


GUESSED = ("label:   diseased (", 'client:  Hospital name (its name says "hospital"', "context: year (")


def test_what_is_guessed_is_said_and_used(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["data", "check", str(table)]) == 0
    said = capsys.readouterr().out
    assert all(line in said for line in GUESSED) and "400 rows, 2 features, 2 clients, 2 contexts" in said
    assert call(["audit", str(table), "--out", str(tmp_path / "audit")]) == 0
    said = capsys.readouterr().out
    assert all(line in said for line in GUESSED) and "Drop scanner." in said


def test_json_stays_json(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["data", "check"], ["audit", "--out", str(tmp_path / "audit")]):
        assert call([*command, str(table), "--format", "json"]) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out) and all(line in printed.err for line in GUESSED)


@pytest.mark.parametrize("command", [["data", "check"], ["audit", "--out", "audit"]])
def test_what_is_not_named_is_guessed(
    table: Path, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(table.parent)
    assert call([*command, str(table), "--label", "diseased"]) == 0
    said = capsys.readouterr().out
    assert all(line in said for line in GUESSED[1:]) and "label:" not in said
    assert call([*command, str(table), "--label", "diseased", "--client", "Hospital name", "--context", ""]) == 0
    said = capsys.readouterr().out
    assert "context:" not in said and "client:" not in said
    rows = table.read_text().splitlines()
    table.write_text("\n".join(["hospital,ward,age,tint,label", *rows[1:]]) + "\n")
    assert call([*command, str(table), "--client", "hospital"]) == 0
    said = capsys.readouterr().out
    assert "context: none" in said and "label:" not in said


def test_a_table_without_rows_says_so(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write_text(table.read_text().splitlines()[0] + "\n")
    assert call(["audit", str(table), "--out", str(tmp_path / "audit")]) == 2
    printed = capsys.readouterr()
    assert printed.err.strip().endswith("patients.csv: there is a header and no row below it.") and not printed.out


def test_usual_names_are_taken_without_being_told(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table.read_text().splitlines()
    table.write_text("\n".join(["client,context,age,scanner,label", *rows[1:]]) + "\n")
    assert call(["data", "check", str(table)]) == 0
    said = capsys.readouterr().out
    assert "2 clients, 2 contexts" in said and "label:" not in said


def test_a_table_without_a_site_says_what_is_missing(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [",".join(line.split(",")[1::3] + line.split(",")[2:3]) for line in table.read_text().splitlines()]
    table.write_text("\n".join(rows) + "\n")  # year, diseased, age
    assert call(["data", "check", str(table)]) == 2
    said = capsys.readouterr().out
    assert "label:   diseased" in said and 'there is no column "client"' in said
