"""A server and four sites as real processes on loopback, of which one registered site means harm, or is gone."""

import json
import time

import pytest

from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.records import read_events, read_run
from tests.commands import perinvfl, until
from tests.flower.process_files import assert_as_simulated, left_out
from tests.flower.processes import ODD, Processes

HOSTILE_SCORES = {
    "is not a table": "[" * 100_000,
    "does not have one number": '{"personal": Infinity}',
    "is not a table of numbers": '{"a": ' + "9" * 5000 + "}",
    "could not answer": "error " + "\x1b[2J[/b]" * 20_000,
}


def test_scores_that_cannot_be_are_left_out_and_the_others_shown(federation: Processes) -> None:
    federation.behave(instead={"evaluate": [*HOSTILE_SCORES.values()]})
    file = federation.experiment("hostile", rounds=4, settings="last_patience = 1")
    printed = federation.run(file, "--set", "training.evaluate_every=1")
    assert printed.count(f"goes on without {ODD}: evaluation") == 4
    assert f"without {ODD}, which did not answer the last evaluation" in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) < 700 and "\x1b[2J" not in printed
    (folder,) = federation.records(file)
    why = dict(left_out(folder, ODD))
    assert sorted(why) == [0, 1, 2, 3] and all(len(reason) < 600 for reason in why.values())
    for number, says in enumerate(HOSTILE_SCORES):
        assert says in why[(number - 1) % 4]  # an evaluation is named by the rounds that are done
    run = read_run(folder)
    assert run is not None and run.finished and run.absent == [ODD]
    assert all(scores[3] is None and None not in scores[:3] for scores in run.evaluations[-1]["personal"].values())


INTRODUCTION = {"shape": [6], "task": "binary", "outputs": 1, "tests": [], "cases": [], "spectrum": [], "contexts": 1}


def test_a_run_is_refused_at_its_start_with_the_name_of_the_site(federation: Processes) -> None:
    for change in ({"contexts": 10**9}, {"tests": ["x" * 100_000]}):
        told = INTRODUCTION | {"batch_fits": True, "constant": {}} | change
        federation.behave(instead={"query": [json.dumps(told)]})
        run = federation.begin(federation.experiment("introduced", rounds=1))
        printed, _ = run.communicate(timeout=60)
        assert run.returncode == 2 and f"error: {ODD} does not describe its data" in printed and len(printed) < 1000


def test_an_update_far_from_the_others_is_named_and_one_site_cannot_do_harm(federation: Processes) -> None:
    federation.behave(spoil=["far"] * 3)
    trimmed = "[[algorithm]]\nname = 'fedavg'\ntrimming = 0.25\n"
    file = federation.experiment("far", rounds=3, algorithms=trimmed)
    printed = federation.run(file)
    assert printed.count(f"the update of {ODD} is far from the others'") == 1  # on record every time
    (folder,) = federation.records(file)
    far = [event for event in read_events(folder / "events.jsonl") if event["event"] == "far"]
    assert [(event["round"], event["site"]) for event in far] == [(1, ODD), (2, ODD), (3, ODD)]
    assert not left_out(folder, ODD)


def test_uploads_that_are_sent_again_are_ignored(
    federation: Processes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    replayed = federation.behaviour.with_name("replayed.txt")
    replayed.unlink(missing_ok=True)
    federation.behave(replay=True)
    file = federation.experiment("replayed", rounds=4)
    federation.run(file)
    assert len(replayed.read_text().splitlines()) >= 6
    (trial,) = read_experiment(file).trials
    (folder,) = federation.records(file)
    assert_as_simulated(federation, folder, trial, tmp_path_factory.mktemp("simulated"))
    events = [event["event"] for event in read_events(folder / "events.jsonl")]
    assert events == ["start", "evaluation", "scores", "end"]


def test_a_site_that_is_gone_at_the_end_is_missing_from_the_mean_and_nothing_waits_for_it(
    federation: Processes,
) -> None:
    file = federation.experiment("leaves", rounds=2, settings="last_patience = 1\nround_timeout = 600")
    federation.behave(hang_at="evaluate")
    run = federation.begin(file)
    until(lambda: federation.behaviour.with_name("hanging").exists(), "the site hangs")
    federation.kill(ODD)
    killed = time.monotonic()
    printed, _ = run.communicate(timeout=200)
    assert run.returncode == 0 and time.monotonic() - killed < 60, printed
    missing = f"without {ODD}, which did not answer the last evaluation"
    assert missing in " ".join(printed.split())
    (folder,) = federation.records(file)
    for command in ("table", "report"):
        out = ("--out", federation.root / "report.html") if command == "report" else ()
        shown = perinvfl(command, folder.parent, *out)
        assert shown.returncode == 0, shown.stderr
        page = shown.stdout if command == "table" else (federation.root / "report.html").read_text()
        assert missing in " ".join(page.split())
