"""`perinvfl init`: what it guesses or asks, the file it writes, and that the file runs."""

import os
import pty
import random
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from perinvfl.runs.draft import Draft, draft_text
from perinvfl.runs.records import find_runs
from tests.commands import called, check_refusal, command, environment
from tests.data.own.small_table import write

HEADER = ["record_id", "age", "hb", "hospital", "visit_year", "died"]


def rows_of(each: int = 20) -> list[list[Any]]:
    draw = random.Random(0)
    made: list[list[Any]] = []
    for number in range(each * 6):
        hospital, year = ("north", "south")[number % 2], 2020 + number // 2 % 3
        died = draw.randrange(2)
        made.append([number + 1, draw.randrange(20, 90), f"{draw.gauss(12 + died, 1):.2f}", hospital, year, died])
    return made


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "patients.csv", rows_of(), HEADER)


def test_the_written_file_runs(table: Path) -> None:
    folder = table.parent
    done = called("init", "patients.csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    for line in (
        'label:   died (its name says "died", and it has 2 values (0, 1))',
        'client:  hospital (its name says "hospital", and it has 2 values (north, south))',
        'context: visit_year (its name says "year", and it has 3 values (2020, 2021, 2022))',
        "held out: 2022 (the last of 3 contexts",
        "left out: record_id (looks like a running number",
        "Next: perinvfl run patients.toml",
    ):
        assert line in done.stdout
    text = (folder / "patients.toml").read_text()
    file = tomllib.loads(text)
    assert file["data"] == {
        "benchmark": "file", "path": "patients.csv", "label": "died", "client": "hospital", "context": "visit_year",
        "test_contexts": ["2022"], "ignore": ["record_id"],
    }  # fmt: skip
    assert [method["name"] for method in file["algorithm"]] == ["recommended", "fedavg", "ditto"]
    assert text.count("#") >= 10
    ran = called("run", "patients.toml", "--set", "training.rounds=2", "--set", "seeds=[0]", "--quiet", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    runs = find_runs(folder / "runs/patients")
    assert len(runs) == 3 and all(run.finished and list(run.evaluations[-1]["global"]) for run in runs)


def test_nothing_is_overwritten_in_silence(table: Path) -> None:
    folder = table.parent
    assert called("init", "patients.csv", cwd=folder).returncode == 0
    (folder / "patients.toml").write_text("mine")
    done = called("init", "patients.csv", "--yes", cwd=folder)
    check_refusal(done.returncode, done.stdout, done.stderr, "patients.toml already exists; use --out for another file")
    assert (folder / "patients.toml").read_text() == "mine"
    assert called("init", "patients.csv", "--out", "other.toml", cwd=folder).returncode == 0
    assert called("init", "patients.csv", "--force", cwd=folder).returncode == 0
    assert tomllib.loads((folder / "patients.toml").read_text())["name"] == "patients"
    (folder / "deep").mkdir()
    assert called("init", "patients.csv", "--out", "deep/a.toml", cwd=folder).returncode == 0
    assert tomllib.loads((folder / "deep/a.toml").read_text())["data"]["path"] == str(table)


def test_what_is_given_is_taken_and_what_cannot_be_guessed_is_asked_for(tmp_path: Path) -> None:
    table = write(
        tmp_path / "t.csv", [[k % 7, k * 0.5, "ab"[k % 2], "xyz"[k % 3], k % 2] for k in range(90)], list("uvpqw")
    )
    done = called("init", table, "--out", tmp_path / "t.toml")
    check_refusal(done.returncode, done.stdout, done.stderr, "p, q could name them; say with --client")
    done = called("init", table, "--out", tmp_path / "t.toml", "--label", "lab")
    check_refusal(done.returncode, done.stdout, done.stderr, '--label: there is no column "lab"')
    done = called("init", table, "--out", tmp_path / "t.toml", "--client", "q", "--context", "p")
    assert done.returncode == 0
    assert "label:   w (it is the last column with two values: 2 values (0, 1); if another column is" in done.stdout
    assert tomllib.loads((tmp_path / "t.toml").read_text())["data"]["client"] == "q"
    write(
        tmp_path / "odd.csv",
        [["ab"[k % 2], "oops" if k == 3 else k * 7 % 50, k % 2] for k in range(90)],
        ["site", "v", "y"],
    )
    done = called("init", "odd.csv", cwd=tmp_path)
    assert done.returncode == 0 and "1 error in the data must be corrected" in done.stdout
    assert done.stdout.endswith("Next: perinvfl data check --file odd.toml\n")
    write(tmp_path / "one.csv", [["ab"[k % 2], k * 0.5, k // 2 % 2] for k in range(90)], ["site", "v", "y"])
    done = called("init", "one.csv", cwd=tmp_path)
    assert done.returncode == 0 and "left out" not in done.stdout  # something must be left to predict from
    done = called("init", tmp_path / "t.toml")
    check_refusal(done.returncode, done.stdout, done.stderr, "init reads tables")
    done = called("init", tmp_path / "none.csv")
    check_refusal(done.returncode, done.stdout, done.stderr, "none.csv does not exist")
    (tmp_path / "empty.csv").write_text("")
    done = called("init", tmp_path / "empty.csv")
    check_refusal(done.returncode, done.stdout, done.stderr, "the file is empty")
    (tmp_path / "header.csv").write_text("site,v,y\n")
    done = called("init", tmp_path / "header.csv")
    check_refusal(done.returncode, done.stdout, done.stderr, "there is a header and no row below it")


def test_a_doubtful_label_says_how_to_name_another(tmp_path: Path) -> None:
    rows = [["xyz"[k % 3], "ab"[k % 2], k * 0.5] for k in range(90)]
    table = write(tmp_path / "t.csv", rows, ["hospital", "smoker", "days"])
    done = called("init", table, "--out", tmp_path / "t.toml", "--context", "")
    assert "label:   smoker (it is the last column with two values" in done.stdout
    assert "if another column is to be predicted, such as days, name it with --label)" in done.stdout


def test_what_to_look_at_is_said_by_init_audit_and_run(tmp_path: Path) -> None:
    rows = rows_of(40)
    made = [[row[1], f"{float(row[2]):.2f}".replace(".", ","), *row[3:5], ["no", "yes"][row[5]]] for row in rows]
    made[3][4], made[5][2] = "yse", "nort"
    write(tmp_path / "t.csv", made, HEADER[1:], delimiter=";")
    said = (
        "hb: read as numbers with decimal commas, so 19,4 is 19.4",
        'died: "yse" stands in 1 of 240 rows; if that is a typing mistake',
        'hospital: "nort" has 1 row and "north"',
    )
    short = ("--set", "training.rounds=1", "--set", "seeds=[0]", "--set", "data.exclude_clients=[]")
    for line in (("init", "t.csv"), ("audit", "t.csv"), ("data", "check", "t.csv")):
        done = called(*line, cwd=tmp_path)
        assert done.returncode == 0 and all(note in done.stdout for note in said), done.stdout
    assert "Nothing is wrong" not in done.stdout and done.stdout.count("look at: ") == 2
    done = called("run", "t.toml", *short, cwd=tmp_path)
    assert all(f"note: {note}" in done.stdout for note in said), done.stderr


def test_a_hospital_is_the_client_whatever_else_could_be(tmp_path: Path) -> None:
    """ "Hospital name" says as much as "hospital"; a device, which may well be the shortcut, is only mentioned."""
    rows = [["ab"[k % 2], f"St. {'xyz'[k % 3]}", 2019 + k // 3 % 3, k * 7 % 50, k // 9 % 2] for k in range(90)]
    write(tmp_path / "visits.csv", rows, ["device", "Hospital name", "Year of visit", "Hb (g/dL)", "readmitted"])
    done = called("init", "visits.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'client:  Hospital name (its name says "hospital", and it has 3 values' in done.stdout
    assert "; device could be it too)" in done.stdout
    data = tomllib.loads((tmp_path / "visits.toml").read_text())["data"]
    assert (data["client"], data["context"]) == ("Hospital name", "Year of visit")


def test_a_terminal_is_asked(table: Path) -> None:
    """A wrong answer is asked again; an empty one takes the guess; a dash is none."""
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        command("init", "patients.csv"), stdin=theirs, stdout=theirs, stderr=theirs, cwd=table.parent, env=environment()
    )
    os.close(theirs)
    os.write(ours, b"dyed\ndied\n\n-\n")
    shown = b""
    while True:
        try:
            block = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        shown += block
    os.close(ours)
    assert done.wait(60) == 0, shown.decode()
    assert b"Which column is to be predicted? [died]" in shown and b"did you mean died?" in shown
    data = tomllib.loads((table.parent / "patients.toml").read_text())["data"]
    assert (data["label"], data["client"], data["context"]) == ("died", "hospital", "")
    assert "test_contexts" not in data


@pytest.mark.parametrize("rows", [300, 50_000, 5_000_000])
def test_rounds_follow_the_size(rows: int) -> None:
    columns = {role: (role, "as asked") for role in ("label", "client", "context")}
    text = draft_text(Draft("big", 'a "quoted".csv', columns, "regression", rows, clients=10, features=80))
    file = tomllib.loads(text)
    assert file["data"]["path"] == 'a "quoted".csv' and file["model"]["hidden"] == [32]
    training = file["training"]
    assert 100 <= training["rounds"] <= 1000 and (training.get("batch_size", 0) == 0) == (rows <= 20_000)
    assert {method.get("optimizer", "") for method in file["algorithm"]} == {"", "adam"}
