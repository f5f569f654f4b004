"""One site among others that tells what cannot be, or nothing at all: it is named, and the others go on."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from perinvfl.errors import UserError
from perinvfl.flower import codec, limits
from perinvfl.flower.adapter.messages import Array, ArrayRecord, MetricRecord, RecordDict
from perinvfl.flower.codec import Rejected
from perinvfl.flower.gathering import far_from_others
from perinvfl.flower.rounds import Rounds
from perinvfl.flower.transport import Answer
from perinvfl.report.data import gather
from perinvfl.results.table import make_table
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.progress import Lines, Progress
from perinvfl.runs.records import Run, read_events, read_run
from perinvfl.runs.trial import Trial
from tests.flower.deployed import SETTINGS, deploy, sites, trial_of
from tests.flower.inprocess import InProcess

HASTY = dataclasses.replace(SETTINGS, last_patience=0.1)
INFERRED: dict[str, Any] = {
    "data": {"benchmark": "random", "clients": 4, "samples": 20, "holdout": 8},
    "contexts": {"infer": "hard", "use": "judge", "reference_rounds": 2, "reference_rate": 0.02},
    "model": {"hidden": [5]},
    "training": {"rounds": 2, "executor": "loop"},
    "algorithm": {"name": "fedavg", "learning_rate": 0.05},
}


def left_out(rounds: Rounds) -> list[tuple[str, str]]:
    return [(e["site"], e["why"]) for e in read_events(rounds.folder / "events.jsonl") if e["event"] == "left out"]


def run_of(rounds: Rounds) -> Run:
    run = read_run(rounds.folder)
    assert run is not None
    return run


@pytest.mark.parametrize(
    "answer",
    [
        codec.encode_table({"reference": {"wrong": [math.inf]}}),
        codec.encode_table({"reference": {"wrong": [10**400]}}),
        RecordDict(),
        Rejected("could not answer: its disk is full"),
        None,
    ],
    ids=["infinite", "huge", "nothing", "error", "silent"],
)
def test_notes_of_one_site_that_cannot_be_do_not_stop_the_run(answer: Answer | None, tmp_path: Path) -> None:
    def spoil(kind: str, client: int, round: int, given: Answer) -> Answer | None:
        return answer if kind == "query.notes" and client == 2 else given

    trial = build_experiment(INFERRED).trials[0]
    rounds = deploy(trial, tmp_path, HASTY, InProcess(tmp_path, 4, spoil))
    assert run_of(rounds).finished and {site for site, _ in left_out(rounds)} == {"site-2"}
    assert "notes" in left_out(rounds)[0][1]
    told = isinstance(answer, RecordDict)  # it took notes, and only told of them what cannot be
    assert rounds.books.used[2] == (rounds.books.used[0] if told else 3)
    assert run_of(rounds).absent == ([] if told else ["site-2"])


def test_too_few_sites_with_notes_end_the_run_by_their_names(tmp_path: Path) -> None:
    def refuse(kind: str, client: int, round: int, given: Answer) -> Answer | None:
        return Rejected("could not answer: no") if kind == "query.notes" and client else given

    trial = build_experiment(INFERRED).trials[0]
    needy = dataclasses.replace(HASTY, minimum_replies=2)
    with pytest.raises(UserError, match=r"Too few sites took notes.*site-1 \(could not answer: no\), site-2.*--resume"):
        deploy(trial, tmp_path, needy, InProcess(tmp_path, 4, refuse))


@pytest.mark.parametrize("number", [{"samples": 2**63 - 1}, {"samples": 1e3}, {"risk": 1e15}, {"risk": math.inf}])
def test_numbers_beside_an_update_that_cannot_be(number: dict[str, Any], tmp_path: Path) -> None:
    def boast(kind: str, client: int, round: int, given: Answer) -> Answer | None:
        if kind == "train" and client == 1 and isinstance(given, RecordDict):
            given[codec.NUMBERS] = MetricRecord({**given.metric_records[codec.NUMBERS], **number})
        return given

    trial = trial_of("groupdro", rounds=2, weights="samples")
    rounds = deploy(trial, tmp_path, HASTY, InProcess(tmp_path, 4, boast))
    assert [site for site, _ in left_out(rounds)] == ["site-1", "site-1"] and run_of(rounds).finished
    lost = deploy(
        trial,
        tmp_path / "lost",
        HASTY,
        InProcess(tmp_path / "lost", 4, lambda k, c, r, a: None if k == "train" and c == 1 else a),
    )
    for name, leaf in rounds.server.params.items():
        assert torch.equal(leaf, lost.server.params[name])


def test_an_update_far_from_the_others(tmp_path: Path) -> None:
    def enlarge(kind: str, client: int, round: int, given: Answer) -> Answer | None:
        if kind == "train" and client == 3 and isinstance(given, RecordDict):
            array = given.array_records[codec.UPDATE][codec.FLAT]
            flat = 1000 * torch.frombuffer(bytearray(array.data), dtype=torch.float32)
            record = ArrayRecord({codec.FLAT: Array("float32", array.shape, codec.RAW, flat.numpy().tobytes())})
            given[codec.UPDATE] = record
        return given

    said: list[str] = []
    trial = trial_of("ditto", rounds=2)
    transport = InProcess(tmp_path, 4, enlarge)
    rounds = Rounds(trial, HASTY, sites(trial), transport, tmp_path / "runs", Lines(said.append))
    rounds.run(resume=False)
    far = [event for event in read_events(rounds.folder / "events.jsonl") if event["event"] == "far"]
    assert [(event["round"], event["site"]) for event in far] == [(1, "site-3"), (2, "site-3")]
    assert sum("site-3 is far from the others'" in line for line in said) == 1
    assert far_from_others({0: 1.0, 1: 9.0, 2: 3.0}) == {} and far_from_others({0: 1.0, 1: 100.0}) == {}
    assert far_from_others({0: 1.0, 1: 0.01, 2: 1.0}) == {1: "norm 0.01, 0.01 times the median of all"}
    assert far_from_others({0: 0.0, 1: 0.0, 2: 1.0}) == {2: "norm 1, and 0 is the median of all"}


def test_a_last_evaluation_that_nobody_answers_can_be_resumed(tmp_path: Path) -> None:
    def silent(kind: str, client: int, round: int, given: Answer) -> Answer | None:
        return None if kind == "evaluate" else given

    trial = trial_of("fedavg", rounds=1)
    with pytest.raises(UserError, match=r"No site answered the last evaluation within 0\.1 s.*--resume"):
        deploy(trial, tmp_path, HASTY, InProcess(tmp_path, 4, silent))
    again = Rounds(trial, HASTY, sites(trial), InProcess(tmp_path, 4), tmp_path / "runs", Progress())
    again.run(resume=True)
    assert run_of(again).finished and not run_of(again).absent


BIRDS: dict[str, Any] = {
    "data": {"benchmark": "drawn_birds", "p_train": [0.9, 0.8, 0.7], "train_per_client": 12, "holdout": 4,
             "test_per_client": 6, "p_test": [0.1, 0.5], "size": 12, "birds": 30, "backgrounds": 60, "left_over": 0},
    "model": {"hidden": [4]},
    "training": {"rounds": 2, "evaluate_every": 1, "executor": "loop"},
    "algorithm": {"name": "ditto", "learning_rate": 0.02, "personal_learning_rate": 0.02},
}  # fmt: skip


@pytest.mark.parametrize("table", [INFERRED, BIRDS], ids=["plain", "with groups"])
def test_tables_and_reports_say_who_is_missing(table: dict[str, Any], tmp_path: Path) -> None:
    def gone(kind: str, client: int, round: int, given: Answer) -> Answer | None:
        return None if kind == "evaluate" and client == 1 else given

    trial: Trial = build_experiment(table).trials[0]
    clients = trial.data.clients
    rounds = deploy(trial, tmp_path, HASTY, InProcess(tmp_path, clients, gone))
    run = run_of(rounds)
    assert run.absent == ["site-1"]
    missing = "without site-1, which did not answer the last evaluation"
    kinds = ("accuracy", "balanced", "worst-group") if "groups" in run.notes else ("accuracy",)
    for score in kinds:
        shown = make_table([run], score)  # type: ignore[arg-type]
        assert any(missing in note for note in shown.notes)
    (section,) = gather([rounds.folder.parent])["sections"]
    assert any(missing in note for note in section["notes"])
    clients_of = section["views"][0]["methods"][0]["clients"]
    known = [any(value is not None for value in client.values()) for client in clients_of]
    assert known == [client != 1 for client in range(clients)]
    # A record of before, which has no entry for the site, reads alike.
    old = []
    for event in read_events(rounds.folder / "events.jsonl"):
        for kind in ("personal", "global", "personal groups", "global groups"):
            if event["event"] == "evaluation" and kind in event:
                event[kind] = {case: row[:1] + row[2:] for case, row in event[kind].items()}
        old.append(json.dumps(event | ({"format": 2} if event["event"] == "start" else {})))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "events.jsonl").write_text("\n".join(old) + "\n")
    before = read_run(tmp_path / "old")
    assert before is not None and before.events[1:] == run.events[1:]


def test_words_of_tables_from_sites_are_bounded() -> None:
    assert limits.is_text("glucose [mg/dl]") and limits.is_text("a\u00a0b") and limits.is_text("größe 大")
    assert not any(map(limits.is_text, ["a\nb", "\x1b[0m", "\u202eabc", "x" * 201, 3, None]))
    assert limits.depth({"a": [[{}]]}) == 3 and limits.depth(1) == 0
