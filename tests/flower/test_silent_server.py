"""A server that is gone, or that hangs without being gone: who waits for it says so soon, and does not wait for ever.

Real processes: SIGKILL makes a server that is gone, SIGSTOP one that hangs, whose port still takes connections.
"""

import http.client
import signal
import ssl
import time
from collections.abc import Callable

import httpx
import pytest

from perinvfl.flower import layout, site_process
from perinvfl.flower.adapter.site import Fleet
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.records import read_events
from tests.commands import until
from tests.flower.process_files import assert_as_simulated, rounds_done
from tests.flower.processes import PERINVFL, SITES, Processes
from tests.warm import Started

TOLD_WITHIN = 10.0  # seconds
PATIENCE = 12
SLOW = PERINVFL.replace("local_steps = 2", "local_steps = 1000000")  # a round of some hours
HANGS = pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["gone", "hanging"])


@pytest.fixture
def hang(federation: Processes):  # type: ignore[no-untyped-def]
    """Sends a signal to the server; afterwards there is none that hangs."""

    def send(number: int) -> float:
        federation.running["up"].send_signal(number)
        return time.monotonic()

    yield send
    federation.kill("up")


def begun(federation: Processes, name: str, rounds: int, algorithms: str = PERINVFL) -> Started:
    """A run that has rounds behind it, or where they take long, sites that are at work."""
    file = federation.experiment(name, rounds, f"server_patience = {PATIENCE}", algorithms)
    run = federation.begin(file)
    if algorithms is SLOW:
        until(lambda: f"{rounds} rounds" in said(run), "the run begins", run)
        time.sleep(1.5)
    else:
        until(lambda: rounds_done(federation, file) >= 1, "a round", run)
    return run


def said(run: Started) -> str:
    return run.log.read_bytes()[run.place :].decode()


@HANGS
@pytest.mark.parametrize("algorithms", [PERINVFL, SLOW], ids=["in short rounds", "in a long round"])
def test_a_server_that_does_not_answer_is_told_of_and_not_waited_for_without_end(
    federation: Processes, hang: Callable[[int], float], number: int, algorithms: str
) -> None:
    run = begun(federation, f"silent-{number}-{len(algorithms)}", 100_000, algorithms)
    since = hang(number)
    told = f"does not answer; the run waits {PATIENCE} s for it"
    until(lambda: told in said(run), "the server is told to be silent", run, TOLD_WITHIN)
    printed, _ = run.communicate(timeout=since + TOLD_WITHIN + PATIENCE + 5 - time.monotonic())
    assert run.returncode == 2 and "Traceback" not in printed, printed
    assert printed.count(told) == 1
    last = printed.splitlines()[-1]
    assert "no longer answers; start it with `perinvfl federation up" in last and "--resume resumes the run" in last
    for site in SITES if algorithms is SLOW else ():  # they compute
        federation.kill(site)


def test_a_server_that_hangs_for_a_while_loses_nothing(
    federation: Processes, hang: Callable[[int], float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also no answer that it had taken in when it stopped: nobody asks for the same twice."""
    file = federation.experiment("hung", 30, f"server_patience = {PATIENCE * 5}\nminimum_replies = 4")
    run = federation.begin(file)
    for done in (2, 10):
        until(lambda done=done: rounds_done(federation, file) >= done, "rounds", run)  # type: ignore[misc]
        before = said(run).count("does not answer")
        hang(signal.SIGSTOP)
        until(lambda before=before: said(run).count("does not answer") > before, "it is told", run, TOLD_WITHIN)  # type: ignore[misc]
        hang(signal.SIGCONT)
    printed, _ = run.communicate(timeout=120)
    assert run.returncode == 0, printed
    (folder,) = federation.records(file)
    written = list(read_events(folder / "events.jsonl"))
    assert [event["event"] for event in written] == ["start", "evaluation", "scores", "end"], written[1:3]
    (trial,) = read_experiment(file).trials
    assert_as_simulated(federation, folder, trial, tmp_path_factory.mktemp("simulated"))


def test_a_request_that_waits_while_the_server_hangs_is_answered(
    federation: Processes, hang: Callable[[int], float]
) -> None:
    """A connection that was idle before is not closed on it: heartbeats would be lost that way."""
    trusted = ssl.create_default_context(cafile=str(federation.site("a") / "ca.crt"))
    server = http.client.HTTPSConnection("localhost", federation.port, context=trusted, timeout=30)
    server.request("GET", "/")
    server.getresponse().read()
    connection = server.sock
    hang(signal.SIGSTOP)
    time.sleep(6.0)
    server.request("GET", "/")
    time.sleep(0.5)
    hang(signal.SIGCONT)
    assert server.getresponse().status == 403 and server.sock is connection
    server.close()


def test_a_beat_that_was_lost_is_made_up_for_soon(federation: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the next one only after the usual pause, a site could look gone where the server hangs twice."""
    node = site_process.Node(layout.open_site(federation.site("a")), {}, lambda message, _: message, lambda line: None)
    beats = iter([None, httpx.ReadError("closed"), ValueError("no answer"), None])
    pauses: list[float] = []

    def beat(fleet: Fleet, id: int, interval: float) -> None:
        if (error := next(beats)) is not None:
            raise error

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) > 4

    monkeypatch.setattr(Fleet, "beat", beat)
    monkeypatch.setattr(node.stopping, "wait", wait)
    node.beat()
    assert pauses == [4.0, 4.0, 0.5, 1.0, 4.0]


def test_commands_that_meet_a_server_that_hangs_end_with_a_sentence(
    federation: Processes, hang: Callable[[int], float]
) -> None:
    file = federation.experiment("unmet", 2)
    hang(signal.SIGSTOP)
    for line in (("status", federation.folder), ("run", federation.folder, file)):
        began = time.monotonic()
        code, printed = federation.command(*line)
        assert code == 2 and time.monotonic() - began < TOLD_WITHIN, printed
        assert "does not answer; start it with" in printed and "if its process hangs, end it first" in printed


def test_who_waits_for_a_server_that_hangs_stops_when_told(federation: Processes, hang: Callable[[int], float]) -> None:
    run = begun(federation, "told", 100_000)
    hang(signal.SIGSTOP)
    until(lambda: "does not answer" in said(run), "the server is told to be silent", run, TOLD_WITHIN)
    began = time.monotonic()
    site = federation.running.pop("b")
    run.send_signal(signal.SIGINT)
    site.send_signal(signal.SIGTERM)
    for process in (run, site):
        process.wait(max(0.0, began + TOLD_WITHIN - time.monotonic()))
    assert run.returncode == 2 and "with --resume resumes the run" in said(run) and "Traceback" not in said(run)
    assert "Traceback" not in federation.log("b")
