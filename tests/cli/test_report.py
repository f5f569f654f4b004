"""`perinvfl report --diagnose` says what it is doing, beside the page and not in it."""

from pathlib import Path

from tests.commands import called
from tests.planted import planted_file

SECOND = '\n[[algorithm]]\nname = "fedavg"\nlearning_rate = 0.3\n'


def test_diagnoses_are_counted_on_stderr(tmp_path: Path) -> None:
    file = planted_file(tmp_path, rounds=2)
    file.write_text(file.read_text() + SECOND)
    assert called("run", file, "--out", tmp_path / "runs", "--quiet").returncode == 0
    page = tmp_path / "report.html"
    done = called("report", tmp_path / "runs", "--diagnose", "-o", page)
    assert done.returncode == 0 and done.stdout == f"{page}\n"
    lines = done.stderr.splitlines()
    assert [line.partition(" (")[2] for line in lines] == ["1 of 2)", "2 of 2)"]
    assert all(line.startswith("diagnosing ") for line in lines)
    assert called("report", tmp_path / "runs", "-o", page).stderr == ""
