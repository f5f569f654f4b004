"""What `perinvfl data check` tells of a file before it is used."""

import json
import runpy
from pathlib import Path

import pytest

from perinvfl.cli import call
from perinvfl.core.config import build
from perinvfl.data.own.files import FileSettings
from perinvfl.data.own.survey import survey
from tests.commands import ROOT
from tests.data.own.small_table import replaced, rows_of, write


def test_check_prints_what_was_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(label=lambda i: int(i % 3 == 0))
    rows = [[*row[:4], int(row[1] == 2020)] if row[0] == "s0" else row for row in rows]  # the year tells the label
    path = write(tmp_path / "t.csv", rows)
    asked = ["data", "check", str(path), "--label", "y", "--client", "site", "--context", "year"]
    assert call([*asked, "--test-context", "2022"]) == 0
    shown = capsys.readouterr().out
    assert "90 rows, 2 features, 3 clients, 3 contexts, binary" in shown and "Nothing is wrong" in shown
    assert call([*asked, "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    clients = {client["name"]: client for client in printed["clients"]}
    assert clients["s0"]["from_context"] == {"accuracy": 1.0, "constant": pytest.approx(2 / 3)}
    assert clients["s1"]["from_context"]["accuracy"] == clients["s1"]["from_context"]["constant"]
    assert clients["s0"]["contexts"] == {"2020": 10, "2021": 10, "2022": 10}
    assert any("no context is held out" in warning for warning in printed["warnings"])
    write(path, replaced(7, 2, "oops"))
    assert call([*asked]) == 2
    assert 'wrong: line 7, column "a": "oops" is not a number' in capsys.readouterr().out
    assert call(["data", "check"]) == 2
    assert "Give either" in capsys.readouterr().err
    (tmp_path / "t.toml").write_text(
        '[data]\nbenchmark = "file"\npath = "t.csv"\nlabel = "y"\nclient = "site"\ncontext = ""\n'
    )
    assert call(["data", "check", "--file", str(tmp_path / "t.toml")]) == 2
    assert "line 7" in capsys.readouterr().out
    (tmp_path / "t.toml").write_text('[data]\nbenchmark = "random"\n')
    assert call(["data", "check", "--file", str(tmp_path / "t.toml")]) == 2
    assert "names no data of your own" in capsys.readouterr().err


def test_check_refuses_what_a_run_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["ab"[k % 2], k, client, year] for client in "uv" for year in (2021, 2022) for k in range(8)]
    write(tmp_path / "t.csv", [row for row in rows if row[2:] != ["u", 2021]], ["label", "x", "client", "context"])
    thin = [["ab"[k], k, "u", k] for k in range(2)]
    write(tmp_path / "thin.csv", thin, ["label", "x", "client", "context"])
    for name, more, words in (
        ("t", "test_contexts = [2022]", 'Client "u" has rows only in 2022'),
        ("t", "leave_one_context_out = true", 'Client "u" has rows only in 2022'),
        ("thin", "", "No row is left to test on"),
    ):
        file = tmp_path / f"{name}.toml"
        file.write_text(
            f'[data]\nbenchmark = "file"\npath = "{name}.csv"\n{more}\n[training]\nrounds = 1\n'
            '[[algorithm]]\nname = "fedavg"\n'
        )
        capsys.readouterr()
        assert call(["data", "check", "--file", str(file)]) == 2
        assert f"wrong: {words}" in capsys.readouterr().out
        assert call(["run", str(file), "--out", str(tmp_path / "runs")]) == 2
        assert words in capsys.readouterr().err


def test_check_finds_the_planted_shortcut(tmp_path: Path) -> None:

    made = runpy.run_path(str(ROOT / "examples/make_sites.py"))
    path = write(tmp_path / "sites.csv", [list(row) for row in made["make_rows"](60, 0)], list(made["HEADER"]))
    found = survey(
        build(FileSettings, {"path": str(path), "label": "ill", "client": "hospital", "context": "year"}, "data")
    )
    first, second = found["relations"][:2]
    assert first["column"] == "scanner" and first["change"] > 1 > 2 * second["change"]
    assert first["by_context"]["2021"] > 0.5 > 0 > first["by_context"]["2023"]


def test_check_says_with_which_class_a_column_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[grade, "ABC".index(grade) + k % 2, "a", k % 2] for grade in "ABC" for k in range(10)]
    path = write(tmp_path / "t.csv", rows, ["label", "x", "client", "context"])
    (relation,) = survey(build(FileSettings, {"path": str(path)}, "data"))["relations"]
    assert relation["class"] in ("A", "C")
    assert call(["data", "check", str(path)]) == 0
    assert "Correlation with the class" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("many", ["client", "context", "label"])
def test_check_says_in_a_page_what_there_is_thousands_of(
    many: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, n = tmp_path / "many.csv", 1200
    cells = {"client": "ab", "context": "xyz", "label": "no"}
    columns = {
        what: [f"k{i % 300}" if what == many else few[i % len(few)] for i in range(n)] for what, few in cells.items()
    }
    rows = [",".join([*row, str(i * 7 % 13)]) for i, row in enumerate(zip(*columns.values(), strict=True))]
    path.write_text("\n".join([",".join([*columns, "age"]), *rows]))
    call(["data", "check", str(path)])
    told = capsys.readouterr().out
    assert len(told) < 20_000 and f"more {'classes' if many == 'label' else many + 's'}" in told
