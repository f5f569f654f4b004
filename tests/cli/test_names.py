"""Names that look like markup, pictures or escape sequences are shown as they are, in every table and message."""

import io
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.progress import TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from perinvfl.cli import call
from perinvfl.core.naming import visible
from perinvfl.terminal.console import PlainConsole
from perinvfl.terminal.live import bars
from tests.commands import called, command, environment

NAMES = ("glucose [mg/dl]", "[/b]", "[bold red]x[/]", ":smile:", r"\[a]", "[link=file:///]y[/link]")


def shown(*things: object, terminal: bool = False) -> str:
    screen = io.StringIO()
    console = PlainConsole(file=screen, width=300, force_terminal=terminal, color_system=None)
    for thing in things:
        console.print(thing)
    return screen.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_a_console_shows_names_as_they_are(name: str) -> None:
    table = Table(name, title=f"title {name}", caption=f"caption {name}")
    table.add_row(name)
    table.add_row("wide enough for the title and the caption")
    table.add_row(Text(name))
    assert shown(name) == f"{name}\n"
    assert shown(table).count(name) == 5


@pytest.mark.parametrize("name", [*NAMES, "{task}", "%s"])
def test_bars_show_names_as_they_are(name: str) -> None:
    screen = io.StringIO()
    console = PlainConsole(file=screen, width=300, force_terminal=True, color_system=None)
    with bars(console, TimeElapsedColumn()) as progress:
        progress.add_task(name, total=1, words=f"without {name}")
    assert name in screen.getvalue() and f"without {name}" in screen.getvalue()


@pytest.mark.parametrize("steering", ["\x1b[2J", "\x1b]0;title\x07", "\u202e", "\r", "\x9b31m", "\x08"])
def test_a_name_cannot_steer_a_terminal(steering: str) -> None:
    assert steering not in shown(f"a{steering}b") and visible(steering) in shown(f"a{steering}b")


@pytest.fixture(scope="module")
def odd_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Columns, clients, contexts and classes with the names above."""
    path = tmp_path_factory.mktemp("odd") / "odd [b].csv"
    rows = ["site [/b],year,ill [0/1],glucose [mg/dl],[/b]"]
    for i in range(160):
        site, year, ill = ("[bold]", "b [/b]")[i % 2], ("[red]2020", "2021", "[/]")[i // 2 % 3], i // 6 % 2
        rows.append(f"{site},{year},{('no [/]', 'yes [x]')[ill]},{ill + i % 7},{i % 5}")
    path.write_text("\n".join(rows))
    return path


def test_commands_show_the_names_of_a_table(odd_table: Path, tmp_path: Path) -> None:
    roles = ["--label", "ill [0/1]", "--client", "site [/b]", "--context", "year"]
    checked = called("data", "check", odd_table, *roles)
    for name in ("[bold]", "b [/b]", "[red]2020", "[/]", "no [/]", "yes [x]", "glucose [mg/dl]", "[/b]"):
        assert name in checked.stdout, f"{name} is missing from\n{checked.stdout}{checked.stderr}"
    audited = called("audit", odd_table, *roles, "--out", tmp_path / "audit")
    assert audited.returncode == 0 and "glucose [mg/dl]" in audited.stdout and "[/b]" in audited.stdout
    wrong = called("data", "check", odd_table, "--label", "[/i]")
    assert wrong.returncode == 2 and '"[/i]"' in wrong.stdout + wrong.stderr


def test_runs_tables_and_diagnoses_show_the_names(odd_table: Path, tmp_path: Path) -> None:
    file = tmp_path / "odd.toml"
    file.write_text(
        f"""
name = "odd"
[data]
benchmark = "file"
path = "{odd_table}"
label = "ill [0/1]"
client = "site [/b]"
context = "year"
test_contexts = ["[/]"]
[model]
hidden = [4]
[training]
rounds = 2
[[algorithm]]
name = "ditto"
label = "Ditto [/b] :smile:"
"""
    )
    ran = called("run", file, "--out", tmp_path / "runs")
    assert ran.returncode == 0 and "Ditto [/b] :smile:" in ran.stdout, ran.stderr
    table = called("table", tmp_path / "runs/odd")
    assert "Ditto [/b] :smile:" in table.stdout and "[/]" in table.stdout
    diagnosed = called("diagnose", tmp_path / "runs/odd")
    for name in ("[bold]", "b [/b]", "[red]2020", "[/] (test)"):
        assert name in diagnosed.stdout, diagnosed.stdout + diagnosed.stderr
    refused = called("export", tmp_path / "runs/odd", "--client", "[/b]")
    assert refused.returncode == 2 and "--client [/b] is not one of" in refused.stderr


def test_an_error_cannot_steer_a_terminal(tmp_path: Path) -> None:
    done = called("run", tmp_path / "\x1b[2Jno.toml")
    assert done.returncode == 2 and "\x1b" not in done.stderr and r"\x1b[2Jno.toml does not exist" in done.stderr


def test_lines_of_a_run_and_rows_of_a_table_cannot_steer_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and cells in progress lines, in what `init` guesses, and in answers, if a terminal shows them."""
    table, file, model = tmp_path / "t.csv", tmp_path / "t.toml", tmp_path / "m.safetensors"
    contexts, labels = ("x", "y\x1b[31m"), ("no", "yes\x9b")
    rows = [f"{'ab'[i % 2]},{contexts[i // 2 % 2]},{labels[i // 6 % 2]},{i % 7}" for i in range(80)]
    table.write_text("\n".join(["client\x07,context,label,age", *rows]))
    roles = ("--client", "client\x07", "--context", "context", "--label", "label")
    commands = [
        ["init", str(table), "-o", str(file), *roles],
        ["run", str(file), "--out", str(tmp_path / "runs"), "--set", "training.rounds=2", "--set", "seeds=[0]"],
        ["export", str(tmp_path / "runs"), "--method", "fedavg", "--global", "-o", str(model)],
    ]
    for line in commands:
        assert call(line) == 0
        shown = capsys.readouterr()
        assert not {"\x07", "\x1b", "\x9b"} & set(shown.out + shown.err), line
    (tmp_path / "new.csv").write_text("age\n1\n2\x1b[31m\n")
    answers = ["predict", str(model), str(tmp_path / "new.csv")]
    assert call(answers) == 0
    told = capsys.readouterr()
    assert "\x9b" in told.out and "\x1b" not in told.err, "another program gets the names as they are"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert call(answers) == 0
    assert not {"\x1b", "\x9b"} & set(capsys.readouterr().out)


@pytest.mark.parametrize("where", [">&-", "2>&-", "> /dev/full", "| true"])
def test_an_output_that_nobody_takes_is_no_traceback(where: str, tmp_path: Path) -> None:
    """Closed by the shell, full, or a pipe whose reader is gone."""
    (tmp_path / "t.csv").write_text("client,context,label,age\n" + "a,x,0,1\nb,y,1,2\n" * 20)
    line = shlex.join(map(str, command("data", "check", tmp_path / "t.csv", "--format", "json")))
    done = subprocess.run(["bash", "-c", f"{line} {where}"], capture_output=True, text=True, env=environment())
    assert "Traceback" not in done.stdout + done.stderr and "Exception" not in done.stderr, done.stderr
