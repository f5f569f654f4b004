"""A site that is away at the end is missing from means, tables, figures and reports, and ends none of them."""

import shutil
from pathlib import Path

import pytest

from perinvfl.cli import call
from perinvfl.flower.transport import Answer
from perinvfl.runs.event_log import chained
from perinvfl.runs.records import EVENTS, read_events, read_run
from tests.flower.deployed import SETTINGS, deploy, trial_of
from tests.flower.inprocess import InProcess

COMMANDS = (
    ("table",),
    ("table", "--score", "accuracy"),
    ("table", "--score", "auroc"),
    ("plot", "--kind", "all", "--out", "figures"),
    ("report", "-o", "report.html"),
)


@pytest.fixture(scope="module")
def left_early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two deployments that one site left before their last evaluation."""
    folder = tmp_path_factory.mktemp("left")

    def leave(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        return None if kind == "evaluate" and client == 2 else answer

    settings = type(SETTINGS)(patience=1.0, round_timeout=1.0, last_patience=0.1, poll=0.01)
    for name in ("perinvfl", "fedavg"):
        rounds = deploy(trial_of(name, rounds=4), folder, settings, InProcess(folder, 4, leave))
        run = read_run(rounds.folder)
        assert run is not None and run.absent == ["site-2"]
    return rounds.folder.parent


def test_every_command_shows_the_others(
    left_early: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, *options in COMMANDS:
        assert call([name, str(left_early), *options]) == 0, capsys.readouterr().err
    assert "without site-2" in " ".join(capsys.readouterr().out.split())


def without_scores(record: Path) -> None:
    """As if nobody with samples of the first test context had answered."""
    events = read_events(record)
    last = next(event for event in reversed(events) if event["event"] == "evaluation")
    for kind in {"personal", "global"} & last.keys():
        last[kind]["0.1"] = [None] * len(last[kind]["0.1"])
    record.write_bytes(chained(events))


def test_a_run_without_any_score_at_a_test_context_is_named_and_left_out(
    left_early: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(left_early, "both", ignore=shutil.ignore_patterns("server.pt"))
    record = next(path for path in Path("both").rglob(EVENTS) if "perinvfl" in path.parent.name)
    without_scores(record)
    shutil.copytree(record.parent, "alone")
    says = "not shown, because in its last evaluation no client has a score at 0.1"
    for name, *options in COMMANDS[:1] + COMMANDS[3:4]:
        assert call([name, "alone", *options]) == 2
        assert says in capsys.readouterr().err
    assert call(["report", "alone", "-o", "report.html"]) in (0, 2)
    for name, *options in COMMANDS:
        assert call([name, "both", *options]) == 0, capsys.readouterr().err
    call(["table", "both"])
    assert says in " ".join(capsys.readouterr().out.split())
