"""perinvfl as a plain Flower app: `flwr run` in Ray simulation, and with Flower's own SuperLink and SuperNodes."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from perinvfl.core import checkpoint, tree
from perinvfl.engine.simulation import Simulation
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.records import read_run
from tests.commands import ROOT, environment, free_port, until

BIN = Path(sys.executable).parent


@pytest.fixture
def place() -> Iterator[Path]:
    """A copy of the app with as little to do as possible; in a folder of a short name, as the sockets of Ray need."""
    with tempfile.TemporaryDirectory(prefix="app-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        shutil.copytree(ROOT / "apps" / "flower", folder / "app")
        file = folder / "app" / "experiment.toml"
        file.write_text(file.read_text().replace("clients = 4", "clients = 2").replace("rounds = 3", "rounds = 2"))
        yield folder


def settings(place: Path) -> dict[str, str]:
    return {
        **environment(),
        "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        "FLWR_HOME": str(place / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_TMPDIR": str(place),  # where no other Ray on this machine is
    }


@contextmanager
def process(place: Path, log: str, *line: object) -> Iterator[None]:
    with open(place / log, "w") as file:
        started = subprocess.Popen(
            [str(BIN / str(line[0])), *map(str, line[1:])], stdout=file, stderr=file, env=settings(place), cwd=place
        )
    try:
        yield
    finally:
        started.terminate()
        started.wait(30)


@contextmanager
def superlink(place: Path, *more: str) -> Iterator[int]:
    port = free_port()
    (place / "home").mkdir()
    connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (place / "home" / "config.toml").write_text(connection)
    line = ("flower-superlink", "--insecure", "--port", port, "--disable-runtime-dependency-installation", *more)
    with process(place, "superlink.log", *line):
        until(lambda: _answers(port), "the SuperLink answers")
        yield port


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=1).is_success
    except httpx.HTTPError:
        return False


def run(place: Path, *more: str) -> None:
    out = place / "runs"
    config = f'out="{out}" sites="{place / "sites"}"'
    line = [str(BIN / "flwr"), "run", str(place / "app"), "here", "--run-config", config, *more]
    done = subprocess.run(line, capture_output=True, text=True, env=settings(place), cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = time.monotonic() + 600  # Flower begins a process for every message, each of which imports torch
    while not any((found := read_run(path.parent)) and found.finished for path in out.rglob("events.jsonl")):
        logs = _logs(place)
        assert time.monotonic() < ends and "raised an exception" not in logs, logs
        time.sleep(0.2)


def _logs(place: Path) -> str:
    """The ends of what the processes wrote, Ray's among them."""
    paths = [*place.glob("*.log"), *place.glob("ray/session_2*/logs/*.*")]
    return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}" for path in paths)


def assert_as_simulated(place: Path) -> None:
    (trial,) = read_experiment(place / "app" / "experiment.toml").trials
    simulation = Simulation([trial.algorithm], [trial.federation()], [trial.seed], trial.training, trial.model)
    for _ in range(trial.training.rounds):
        simulation.round()
    (path,) = (place / "runs").rglob("server.pt")
    found = checkpoint.load(path)
    expected = tree.named_leaves(tree.over(lambda leaf: leaf[0], simulation.server), "server")
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-5, atol=1e-6)
    assert len(list(place.rglob("committed.pt"))) == trial.data.clients


def test_in_ray_simulation(place: Path) -> None:
    with superlink(place, "--simulation"):
        run(place, "--federation-config", "num-supernodes=2 client-resources-num-cpus=1")
    assert_as_simulated(place)


def test_with_flowers_own_supernodes(place: Path) -> None:
    with superlink(place) as port:
        address = f"127.0.0.1:{port}"
        line = ("flower-supernode", "--insecure", "--superlink", address, "--port")
        first, second = (f'client={client} folder="{place / f"node-{client}"}"' for client in (0, 1))
        with process(place, "node-0.log", *line, free_port(), "--node-config", first):
            with process(place, "node-1.log", *line, free_port(), "--node-config", second):
                run(place)
    assert_as_simulated(place)
