"""The catalogue in the package says what the code declares."""

import subprocess
import sys

from perinvfl.runs.catalogue import Setting, read_catalogue
from tests.commands import ROOT


def test_the_catalogue_is_that_of_the_declared_settings() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/make_catalogue.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_default_reads_as_in_a_file() -> None:
    def text(default: object) -> str:
        return Setting("name", "", default, "", "", "").default_text

    assert [text(default) for default in (1, 600.0, True, "sgd", [[0, 9], [10, 19]], None)] == [
        "1", "600", "true", '"sgd"', "[[0, 9], [10, 19]]", "",
    ]  # fmt: skip


def test_it_holds_what_is_shown() -> None:
    catalogue = read_catalogue()
    assert catalogue.algorithms["perinvfl"].setting("beta").symbol == "β"
    assert catalogue.benchmarks["waterbird"].setting("albums").default == "data/waterbird"
    assert list(catalogue.sections) == ["contexts", "model", "training", "federation"]
