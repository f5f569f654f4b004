"""A server and four sites as real processes on loopback, with TLS and authentication: what goes wrong."""

import signal
from pathlib import Path

from perinvfl.core import tree
from perinvfl.flower.codec import Rejected
from perinvfl.flower.rounds import Rounds
from perinvfl.flower.settings import DeploymentSettings
from perinvfl.flower.transport import Answer
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import read_events
from perinvfl.runs.trial import Trial
from tests.commands import until
from tests.flower.deployed import assert_equal, state_at
from tests.flower.inprocess import InProcess
from tests.flower.process_files import (
    assert_as_simulated,
    left_out,
    lost_rounds,
    rounds_done,
    server_state,
    site_state,
)
from tests.flower.processes import ODD, SITES, Processes


def without(trial: Trial, folder: Path, gone: dict[int, list[int]]) -> Rounds:
    """The same run in this process, with clients whose answers of some rounds are lost."""

    def meddle(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        lost = kind == "train" and round in gone.get(client, [])
        return Rejected("lost") if lost else answer

    post = InProcess(folder, trial.data.clients, meddle)
    rounds = Rounds(trial, DeploymentSettings(), list(SITES), post, folder / "runs", Progress())
    rounds.run(resume=False)
    return rounds


def assert_same_server(folder: Path, rounds: Rounds) -> None:
    expected = tree.named_leaves(rounds.server, "server")
    assert_equal(server_state(folder), expected)


def test_uploads_that_cannot_be_true_never_enter(federation: Processes, tmp_path: Path) -> None:
    kinds = ["nan", "infinite", "large", "shape", "malformed", "bytes", "risk", ""]
    federation.behave(spoil=kinds)
    file = federation.experiment("spoiled", rounds=len(kinds))
    printed = federation.run(file)
    (folder,) = federation.records(file)
    why = dict(left_out(folder, ODD))
    assert sorted(why) == list(range(7))
    assert "NaN" in why[0] and "infinite" in why[1] and "norm" in why[2] and "shape" in why[3]
    assert "parts something" in why[4] and "bytes" in why[5] and "risk" in why[6]
    assert printed.count(f"goes on without {ODD}") == 7
    assert lost_rounds(folder) == {0: [], 1: [], 2: [], 3: list(range(7))}
    end = read_events(folder / "events.jsonl")[-1]
    assert end["left_out"] == {ODD: 7}
    (trial,) = read_experiment(file).trials
    rounds = without(trial, tmp_path, {3: list(range(7))})
    assert_same_server(folder, rounds)
    # θ of the spoiled rounds did not advance: the site's only committed round is the last.
    assert_equal(site_state(federation, ODD, folder), state_at(tmp_path / "site-3", rounds.folder))


def assert_left_behind_and_back(federation: Processes, file: Path, tmp_path: Path) -> None:
    """Some rounds went on without the odd site, a later one had it, and the result is what those rounds make."""
    (folder,) = federation.records(file)
    (trial,) = read_experiment(file).trials
    lost = lost_rounds(folder)
    odd = SITES.index(ODD)
    assert lost[odd] and any(round not in lost[odd] for round in range(lost[odd][0], trial.training.rounds))
    assert {round for round, _ in left_out(folder, ODD)} >= set(lost[odd])
    assert_same_server(folder, without(trial, tmp_path, lost))


def test_a_site_killed_in_the_middle_of_a_round_is_left_behind_and_comes_back(
    federation: Processes, tmp_path: Path
) -> None:
    file = federation.experiment("killed", rounds=5, settings="round_timeout = 2.5\nminimum_replies = 2")
    federation.behave(hang=True)
    run = federation.begin(file)
    until(lambda: federation.behaviour.with_name("hanging").exists(), "the site hangs")
    federation.kill(ODD, signal.SIGKILL)
    federation.behave()
    federation.start(ODD)
    until(lambda: rounds_done(federation, file) >= 1, "the run goes on without it")
    printed, _ = run.communicate(timeout=200)
    assert run.returncode == 0, printed
    assert_left_behind_and_back(federation, file, tmp_path)


def test_a_slow_site_is_left_behind_and_catches_up(federation: Processes, tmp_path: Path) -> None:
    file = federation.experiment("slow", rounds=5, settings="round_timeout = 1.5\nminimum_replies = 2")
    federation.behave(hold=True)
    run = federation.begin(file)
    until(lambda: rounds_done(federation, file) >= 1, "rounds go on without it")
    federation.behave()
    printed, _ = run.communicate(timeout=200)
    assert run.returncode == 0, printed
    assert_left_behind_and_back(federation, file, tmp_path)


def test_a_server_killed_goes_on_from_its_last_round(federation: Processes, tmp_path: Path) -> None:
    file = federation.experiment("resumed", rounds=6)
    run = federation.begin(file)
    until(lambda: rounds_done(federation, file) >= 2, "two rounds")
    run.kill()
    federation.kill("up", signal.SIGKILL)
    run.communicate()
    federation.start("up")
    until((federation.folder / "server" / "control.key").exists, "the server runs again")
    refused = federation.begin(file)
    printed, _ = refused.communicate(timeout=60)
    assert refused.returncode == 2 and "add --resume" in printed
    again = federation.begin(file, "--resume")  # killed once more, this time the run alone
    until(lambda: rounds_done(federation, file) >= 4, "two more rounds")
    again.kill()
    again.communicate()
    printed = federation.run(file, "--resume")
    assert "resumes after round" in printed or "already done" not in printed
    (trial,) = read_experiment(file).trials
    (folder,) = federation.records(file)
    assert_as_simulated(federation, folder, trial, tmp_path)
    events = [event["event"] for event in read_events(folder / "events.jsonl")]
    assert events == ["start", "evaluation", "scores", "end"]
