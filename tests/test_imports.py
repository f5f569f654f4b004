"""What is imported: to train, torch and the standard library only; to read records or ask for help, no torch."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from perinvfl.cli import call
from perinvfl.cli.app import app
from perinvfl.runs.records import CHECKPOINT
from tests.commands import tiny_file

BLOCK = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {"typer", "rich", "click", "numpy", "pydantic", "safetensors", "flwr", "jinja2", "ray", "optuna"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
from perinvfl.runs.train import main
code = main(sys.argv[1:])
outside = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print("imported:", sorted(outside & {"typer", "rich", "click", "numpy", "pydantic", "safetensors"}))
sys.exit(code)
"""


def test_training_runs_where_nothing_but_torch_is_installed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCK, str(tiny_file(tmp_path)), "--out", str(tmp_path / "runs")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "imported: []" in done.stdout
    assert list((tmp_path / "runs").rglob("checkpoint.pt"))


WITHOUT_TORCH = """
import json
import sys
from perinvfl.cli import call

for line in json.loads(sys.argv[1]):
    code = call(line)
    assert code == 0, line
    assert "torch" not in sys.modules, f"torch was imported by {line}"
"""


def commands_of(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The group itself and every command in it, as they are typed."""
    found = [path]
    for name, command in group.commands.items():
        inner = (*path, name)
        found += commands_of(command, inner) if isinstance(command, click.Group) else [inner]
    return found


def every_command() -> list[tuple[str, ...]]:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    return commands_of(group)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished run, as training leaves it."""
    folder = tmp_path_factory.mktemp("runs")
    assert call(["run", str(tiny_file(folder)), "--quiet", "--out", str(folder)]) == 0
    return folder / "tiny"


def check_without_torch(*commands: tuple[str | Path, ...], folder: Path) -> str:
    """What commands print in a fresh process, which does not import torch for any of them."""
    lines = json.dumps([[*map(str, command)] for command in commands])
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, lines], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_help_does_not_import_torch(tmp_path: Path) -> None:
    commands = every_command()
    printed = check_without_torch(*((*command, "--help") for command in commands), folder=tmp_path)
    assert printed.count("Usage:") == len(commands) > 10


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("list",),
        ("table", "rc_mnist"),
        ("table", "beyond", "--format", "json"),
        ("plot", "waterbird", "--kind", "clients", "--out", "figures"),
        ("report", "rc_mnist", "ablation", "-o", "report.html"),
    ],
    ids=" ".join,
)
def test_published_tables_are_read_without_torch(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert check_without_torch(arguments, folder=tmp_path)


@pytest.mark.parametrize(
    "arguments", [("table",), ("plot", "--out", "figures"), ("report", "-o", "report.html")], ids=" ".join
)
def test_runs_are_read_without_torch(arguments: tuple[str, ...], runs: Path, tmp_path: Path) -> None:
    command, *options = arguments
    assert check_without_torch((command, runs, *options), folder=tmp_path)


def test_a_run_without_a_checkpoint_is_reported_without_torch(runs: Path, tmp_path: Path) -> None:
    (run,) = (path.parent for path in runs.rglob("events.jsonl"))
    alone = tmp_path / run.name
    alone.mkdir()
    (alone / "events.jsonl").write_bytes((run / "events.jsonl").read_bytes())
    assert (run / CHECKPOINT).exists() and not (alone / CHECKPOINT).exists()
    assert check_without_torch(("report", alone, "-o", "report.html"), folder=tmp_path)


def test_an_algorithm_is_imported_when_it_is_asked_for() -> None:
    """A run begins sooner if it does not import thirty methods to use one of them."""
    program = (
        "import sys, perinvfl.algorithms as a; "
        "file = 'perinvfl.algorithms.apfl'; "
        "assert 'apfl' in a.ALGORITHMS and file not in sys.modules; "
        "assert a.APFL is a.ALGORITHMS['apfl'] and file in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
