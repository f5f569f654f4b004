"""A table of one's own, divided into sites on this machine: the same models, and every mistake one sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perinvfl.core import checkpoint
from perinvfl.errors import UserError
from perinvfl.flower.local_deployment import prepare
from perinvfl.flower.server_state import CHECKPOINT as SERVER
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.records import CHECKPOINT, find_runs
from tests.commands import environment
from tests.data.own.patients import HEADER, patients
from tests.data.own.small_table import write
from tests.flower.deployed import assert_equal, deploy, simulate
from tests.flower.inprocess import InProcess

FILE = """
name = "x"
[data]
benchmark = "file"
path = "t.csv"
label = "ill"
client = "hospital"
context = "year"
test_contexts = [2022]
categories = ["cp"]
missing_values = { chol = 0 }
statistics = "summed"
[model]
hidden = [5]
[training]
rounds = 3
executor = "loop"
[[algorithm]]
name = "ditto"
learning_rate = 0.2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [[f"St. {row[0].upper()}", *row[1:3], row[3] or 0, *row[4:]] for row in patients()]
    write(tmp_path / "t.csv", rows, HEADER)
    (tmp_path / "x.toml").write_text(FILE)
    return tmp_path / "x.toml"


def test_sites_of_a_divided_table_train_as_one_machine(file: Path, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    parts = prepare(file, ["training.rounds=2"], tmp_path / "parts")
    assert parts.sites == ["st-h0", "st-h1", "st-h2"]
    assert [len(path.read_text().splitlines()) for path in parts.data] == [121, 121, 121]
    post = InProcess(tmp_path, 3)
    for client, path in enumerate(parts.data):
        post.contexts[client].node_config["data"] = str(path)
    rounds = deploy(read_experiment(parts.file).trials[0], tmp_path, transport=post)
    alone = read_experiment(file, ["training.rounds=2"]).trials[0]
    theirs = checkpoint.load(simulate(alone, tmp_path) / CHECKPOINT)
    ours = checkpoint.load(rounds.folder / SERVER)
    server = {name: leaf for name, leaf in ours.items() if name.startswith("server")}
    assert server
    assert_equal(server, {name: theirs[name][0] for name in server})


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("data.leave_one_context_out=true", "works on one machine only"),
        ('data.client=""', "data.client is empty"),
        ("data.benchmark=sites", "is not a setting"),
    ],
)
def test_what_cannot_be_divided(file: Path, tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        prepare(file, [override], tmp_path)


def test_one_command_deploys_trains_and_ends_every_process(file: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "perinvfl", "federation", "local", str(file), "--out", str(tmp_path / "out")]
    line += ["--set", "training.rounds=1"]
    done = subprocess.run(line, capture_output=True, text=True, env=environment(), cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "with TLS, and the sites st-h0, st-h1, st-h2 are starting" in done.stdout
    (run,) = find_runs(tmp_path / "out")
    assert run.finished and run.start["sites"] == ["st-h0", "st-h1", "st-h2"] and run.scores is not None
    assert json.loads(json.dumps(run.scores))["personal"]["cases"]["2022"]["clients"]["st-h1"]["samples"] == 40
    port = done.stdout.partition("localhost:")[2].partition(",")[0]
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert int(port) and not [line for line in found.splitlines() if "federation join" in line and "st-h" in line]
