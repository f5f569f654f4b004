"""Ctrl-C and SIGTERM end every process within ten seconds, whatever it is doing, and without a traceback."""

import signal
import subprocess
import time
from pathlib import Path

from tests.commands import command, environment, until
from tests.flower.processes import PERINVFL, Processes
from tests.warm import Started

LONGEST = 10.0  # seconds
ENDLESS = PERINVFL.replace("local_steps = 2", "local_steps = 1000000")  # a round of some hours


def end_of(process: subprocess.Popen[bytes] | Started, began: float) -> int:
    code = process.wait(max(0.0, began + LONGEST - time.monotonic()))
    assert code is not None
    return code


def test_sigterm_ends_server_run_and_sites_in_the_middle_of_a_round(federation: Processes) -> None:
    file = federation.experiment("endless", rounds=1, algorithms=ENDLESS)
    run = federation.begin(file)
    until(lambda: "PerInvFL, seed 0: 1 rounds" in (federation.root / "runs.log").read_text(), "the run begins", run)
    time.sleep(1.5)  # the sites compute
    logs = {name: len(federation.log(name)) for name in ("up", "a", "b", "c")}
    began = time.monotonic()
    ending = {name: federation.running.pop(name) for name in logs}
    for process in (run, *ending.values()):
        process.send_signal(signal.SIGTERM)
    codes = {name: end_of(process, began) for name, process in ending.items()}
    assert end_of(run, began) == -signal.SIGTERM
    assert codes["up"] in (-signal.SIGTERM, 128 + signal.SIGTERM), codes
    assert {codes[name] for name in ("a", "b", "c")} <= {0, 128 + signal.SIGTERM}, codes
    for name, length in logs.items():
        assert "Traceback" not in federation.log(name)[length:], name


def test_a_site_that_waits_for_its_server_stops_when_told(federation: Processes) -> None:
    before = len(federation.log("b"))
    federation.kill("b")
    federation.kill("up")
    federation.start("b")
    until(lambda: "cannot be reached" in federation.log("b")[before:], "b waits for the server")
    waiting, began = federation.running.pop("b"), time.monotonic()
    waiting.send_signal(signal.SIGTERM)
    assert end_of(waiting, began) == 0 and "Traceback" not in federation.log("b")


def test_ctrl_c_twice_ends_the_server_without_a_traceback(federation: Processes) -> None:
    until(lambda: "takes part" in federation.log("c"), "sites are connected")
    for pause in (0.0, 0.3):
        federation.whole()
        server, length = federation.running.pop("up"), len(federation.log("up"))
        time.sleep(1.0)  # sites ask for work
        began = time.monotonic()
        server.send_signal(signal.SIGINT)
        time.sleep(pause)
        server.send_signal(signal.SIGINT)
        assert end_of(server, began) == 130
        assert "Traceback" not in federation.log("up")[length:]


def test_sigterm_ends_a_local_deployment_with_all_its_processes(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(
        "[data]\nbenchmark = 'random'\nclients = 2\n[model]\nhidden = [5]\n[training]\nrounds = 2\n"
        "[[algorithm]]\nname = 'fedavg'\nlearning_rate = 0.1\nlocal_steps = 1000000\n"
    )
    line = command("federation", "local", file, "--out", tmp_path / "out")
    with open(tmp_path / "printed", "wb") as printed:
        local = subprocess.Popen(line, stdout=printed, stderr=printed, env=environment(), cwd=tmp_path)
    try:
        until(lambda: "2 rounds" in (tmp_path / "printed").read_text(), "the run begins", local, seconds=180)
        started = children(local.pid)
        assert len(started) == 4  # the server, two sites and the run
    finally:
        began = time.monotonic()
        local.send_signal(signal.SIGTERM)
        code = end_of(local, began)
    assert code == 128 + signal.SIGTERM
    assert not [pid for pid in started if Path(f"/proc/{pid}/cmdline").exists()]
    assert "Traceback" not in (tmp_path / "printed").read_text()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
