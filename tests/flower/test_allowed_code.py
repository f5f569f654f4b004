"""A site imports nothing that a server names but what the site itself allows, by its name."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perinvfl.errors import UserError
from perinvfl.flower import layout
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.trial import Trial
from tests.flower.deployed import deploy
from tests.flower.inprocess import InProcess
from tests.flower.processes import Processes

NAMES = {"algorithm": "tempting:Steal", "model": "tempting:build"}
TEMPTING = """
from dataclasses import dataclass
from pathlib import Path
import torch
from perinvfl.algorithms.fedavg import FedAvg

Path({marker!r}).touch()  # what it does when it is imported

@dataclass(frozen=True)
class Steal(FedAvg):
    title = "Steal"

def build(shape, outputs):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[0], outputs))
"""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that is installed and leaves a mark whenever it is imported."""
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "tempting.py").write_text(TEMPTING.format(marker=str(tmp_path / "mark")))
    monkeypatch.syspath_prepend(tmp_path / "installed")
    yield tmp_path / "mark"
    sys.modules.pop("tempting", None)


def asking_for(part: str) -> Trial:
    """A trial that names the module, as the server has it, which has imported it."""
    table: dict[str, Any] = {
        "data": {"benchmark": "random", "clients": 4, "samples": 20},
        "model": {"kind": "module", "build": NAMES["model"]} if part == "model" else {"hidden": [5]},
        "training": {"rounds": 1, "batch_size": 8, "executor": "loop"},
        "algorithm": {"name": NAMES["algorithm"] if part == "algorithm" else "fedavg", "learning_rate": 0.05},
    }
    return build_experiment(table).trials[0]


@pytest.mark.parametrize("part", NAMES)
def test_installed_code_that_the_site_does_not_allow_is_not_imported(part: str, marker: Path, tmp_path: Path) -> None:
    class Elsewhere(InProcess):
        """Sites that have not imported what the server has."""

        def ask(self, kind, questions, round, timeout, heard=None):  # type: ignore[no-untyped-def]
            sys.modules.pop("tempting", None)
            marker.unlink(missing_ok=True)
            return super().ask(kind, questions, round, timeout, heard)

    trial, name = asking_for(part), NAMES[part]
    other = "tempting:build.__globals__, tempting:Other" if part == "model" else "tempting:build"
    for allow in ("", other):
        with pytest.raises(UserError) as refusal:
            deploy(trial, tmp_path / "refused", transport=Elsewhere(tmp_path / "refused", 4, allow=allow))
        assert not marker.exists()
        assert f'"{name}": this site does not allow it' in str(refusal.value)
        assert f"--allow {name}" in str(refusal.value) and f'allow = ["{name}"]' in str(refusal.value)
    deploy(trial, tmp_path / "allowed", transport=Elsewhere(tmp_path / "allowed", 4, allow=name))


def test_what_a_site_allows_is_in_its_file_or_on_its_command_line(tmp_path: Path) -> None:
    layout.make_federation(tmp_path, ["a"], ["localhost"], 9443)
    file = tmp_path / "site-a" / "site.toml"
    plain = file.read_text()
    assert layout.open_site(tmp_path / "site-a").allow == ()
    file.write_text(plain + 'allow = ["one:A", "two.three:B"]\n')
    assert layout.open_site(tmp_path / "site-a", allow=["four:C"]).allow == ("one:A", "two.three:B", "four:C")
    for wrong in ('allow = "one"', "allow = [1]", 'allow = ["one:A,os:system"]', "allow = {one = 1}"):
        file.write_text(f"{plain}{wrong}\n")
        with pytest.raises(UserError, match=r"site.toml, allow: .* must be module:name"):
            layout.open_site(tmp_path / "site-a")
    file.write_text(plain)
    with pytest.raises(UserError, match=r"--allow: .* must be module:name"):
        layout.open_site(tmp_path / "site-a", allow=["one"])


def test_a_site_of_its_own_says_what_to_write(federation: Processes) -> None:
    """The module can be imported at every site, and none allows it."""
    build = "tests.flower.own_module:build"
    file = federation.experiment("tempting", rounds=1, model=f'kind = "module"\nbuild = "{build}"')
    run = federation.begin(file)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == 2 and f"this site does not allow it. To allow it, join with --allow {build}" in printed
