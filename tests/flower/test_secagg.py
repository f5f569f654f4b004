"""Secure aggregation: the plain mean to 1e-5, whoever drops out, and masks that hide what they cover."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from perinvfl.core import tree
from perinvfl.errors import UserError
from perinvfl.flower import masked_vectors
from perinvfl.flower.adapter.messages import ConfigRecord, MetricRecord, RecordDict
from perinvfl.flower.adapter.secagg import RECORD_KEY_CONFIGS, Key, Stage
from perinvfl.flower.codec import NUMBERS, Rejected
from perinvfl.flower.settings import DeploymentSettings, check_deployment
from perinvfl.flower.transport import Answer
from perinvfl.runs.records import read_events
from tests.flower.deployed import deploy, simulation_of, trial_of
from tests.flower.inprocess import InProcess

SECRET = DeploymentSettings(patience=1.0, secure_aggregation=True, poll=0.01)


def test_the_sum_is_the_plain_mean_and_no_single_update_is_seen(tmp_path: Path) -> None:
    trial = trial_of("perinvfl")
    vectors: list[numpy.ndarray] = []

    def look(kind: str, client: int, round: int, answer: Answer) -> Answer:
        if kind == "train":
            assert isinstance(answer, RecordDict) and "update" not in answer
            if masked_vectors.MASKED in answer:
                assert dict(answer.metric_records["numbers"]) == {}
                vectors.append(numpy.frombuffer(answer.array_records["masked"]["vector"].data, dtype="<u4"))
        return answer

    rounds = deploy(trial, tmp_path, SECRET, InProcess(tmp_path, 4, look))
    simulation = simulation_of(trial)
    for left, right in zip(rounds.server.params.values(), simulation.server.params.values(), strict=True):
        torch.testing.assert_close(left, right[0], rtol=0, atol=1e-5)
    assert len(vectors) == 20
    # As large as the model and one number more, and spread over the whole range as only masks would be.
    size = sum(leaf.numel() for leaf in rounds.server.params.values())
    assert all(vector.size == size + 1 for vector in vectors)
    spread = numpy.concatenate(vectors).astype(float) / 2**32
    assert abs(spread.mean() - 0.5) < 0.02 and abs(spread.var() - 1 / 12) < 0.01
    (evaluation,) = [e for e in read_events(rounds.folder / "events.jsonl") if e["event"] == "evaluation"][-1:]
    assert len(set(evaluation["risks"])) == 1  # the mean, for everybody


@pytest.mark.parametrize("name", ["scaffold", "fednova", "fedrep", "fedyogi", "fedsr", "fediir"])
def test_what_travels_beside_the_update_is_hidden_too(name: str, tmp_path: Path) -> None:
    """Control variates and numbers of steps are part of the masked vector: the server has their mean."""
    trial, beside = trial_of(name), []

    def look(kind: str, client: int, round: int, answer: Answer) -> Answer:
        assert isinstance(answer, RecordDict) and "control" not in answer
        if kind == "train" and masked_vectors.MASKED in answer:
            beside.append(len(answer.array_records["masked"]["vector"].data) // 4)
        return answer

    rounds, simulation = deploy(trial, tmp_path, SECRET, InProcess(tmp_path, 4, look)), simulation_of(trial)
    for left, right in zip(tree.leaves(rounds.server), tree.leaves(simulation.server), strict=True):
        torch.testing.assert_close(left, right[0], rtol=0, atol=1e-5)
    size = sum(leaf.numel() for leaf in rounds.server.params.values())
    travels = sum(leaf.numel() for leaf in rounds.server.control.values())
    assert set(beside) == {size + 1 + travels} and (travels > 0) == (name not in ("fedrep", "fedyogi"))


@pytest.mark.parametrize("name", ["scaffold", "fednova", "fedsr", "fediir"])
def test_what_travels_beside_the_update_is_refused_under_noise(name: str) -> None:
    with pytest.raises(UserError, match="sends more than an update"):
        check_deployment(DeploymentSettings(noise_multiplier=1.0), trial_of(name), 4)


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK])
def test_a_site_may_drop_out_at_any_stage(stage: str, tmp_path: Path) -> None:
    """Whether it is lost before its vector counts or after, the mean is that of the sites whose vectors came."""
    stages = list(Stage.all())
    seen = [0]

    class Counting(InProcess):
        def ask(self, kind, questions, round, timeout, heard=None):  # type: ignore[no-untyped-def]
            if kind == "train":
                seen[0] += 1
            return super().ask(kind, questions, round, timeout, heard)

    def drop(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        return None if kind == "train" and client == 1 and (seen[0] - 1) % 4 == stages.index(stage) else answer

    trial = trial_of("fedavg", rounds=2)
    rounds = deploy(trial, tmp_path / "secret", SECRET, Counting(tmp_path / "secret", 4, drop))
    counts = stage == Stage.UNMASK
    assert rounds.books.used == ([3, 3, 3, 3] if counts else [3, -1, 3, 3])

    def lose(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        return answer if counts or kind != "train" or client != 1 else None

    plain = deploy(trial, tmp_path / "plain", DeploymentSettings(), InProcess(tmp_path / "plain", 4, lose))
    for left, right in zip(rounds.server.params.values(), plain.server.params.values(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-5)


def test_with_too_few_sites_left_the_round_is_asked_again(tmp_path: Path) -> None:
    tries = [0]

    def lose(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        if kind == "train" and isinstance(answer, RecordDict) and masked_vectors.MASKED in answer:
            tries[0] += client == 0
            return None if tries[0] == 1 and client else answer
        return answer

    rounds = deploy(trial_of("fedavg", rounds=1), tmp_path, SECRET, InProcess(tmp_path, 4, lose))
    assert tries[0] == 2 and rounds.books.used == [1, 1, 1, 1]
    undone = [event for event in read_events(rounds.folder / "events.jsonl") if event["event"] == "undone"]
    assert len(undone) == 1 and "3 are needed" in undone[0]["why"]


def test_answers_that_are_none_leave_a_site_out(tmp_path: Path) -> None:
    def spoil(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        if kind == "train" and client == 2 and isinstance(answer, RecordDict):
            return RecordDict()
        return answer

    rounds = deploy(trial_of("fedavg", rounds=1), tmp_path, SECRET, InProcess(tmp_path, 4, spoil))
    assert rounds.books.used == [1, 1, -1, 1]
    assert any("does not give" in e["why"] for e in read_events(rounds.folder / "events.jsonl") if "why" in e)


HOSTILE: dict[str, dict[str, Any]] = {
    Stage.SETUP: {Key.PUBLIC_KEY_1: b"-----BEGIN PUBLIC KEY-----", Key.PUBLIC_KEY_2: "no bytes"},
    Stage.SHARE_KEYS: {Key.DESTINATION_LIST: [1.5], Key.CIPHERTEXT_LIST: [b"a", b"b"]},
    Stage.COLLECT_MASKED_VECTORS: {},
    Stage.UNMASK: {Key.NODE_ID_LIST: [100, 101, 102, 103], Key.SHARE_LIST: [b"", b"x" * 20, b"y" * 36, b"z" * 400]},
}


@pytest.mark.parametrize("stage", HOSTILE)
def test_one_site_that_sends_nonsense_does_not_stop_the_others(stage: str, tmp_path: Path) -> None:
    asked = [""]

    class Listening(InProcess):
        def ask(self, kind, questions, round, timeout, heard=None):  # type: ignore[no-untyped-def]
            record = next(iter(questions.values())).config_records.get(RECORD_KEY_CONFIGS, {})
            asked[0] = str(record.get(Key.STAGE, ""))
            return super().ask(kind, questions, round, timeout, heard)

    def spoil(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        if client != 2 or asked[0] != stage or not isinstance(answer, RecordDict):
            return answer
        if stage == Stage.COLLECT_MASKED_VECTORS:
            answer[NUMBERS] = MetricRecord({"risk": [1.0, 2.0]})
        answer[RECORD_KEY_CONFIGS] = ConfigRecord(HOSTILE[stage])
        return answer

    trial = trial_of("fedavg", rounds=1)
    rounds = deploy(trial, tmp_path, SECRET, Listening(tmp_path, 4, spoil))
    assert rounds.books.used == ([1, 1, 1, 1] if stage == Stage.UNMASK else [1, 1, -1, 1])
    named = [event["site"] for event in read_events(rounds.folder / "events.jsonl") if event["event"] == "left out"]
    assert named == ["site-2"] and all(torch.isfinite(leaf).all() for leaf in rounds.server.params.values())


@pytest.mark.parametrize("settings", [{"trimming": 0.2}, {"clipping": 1.0}])
def test_what_needs_single_updates_is_refused(settings: dict[str, Any]) -> None:
    trial = trial_of("fedavg")
    trial = dataclasses.replace(trial, algorithm=dataclasses.replace(trial.algorithm, **settings))
    (name,) = settings
    with pytest.raises(UserError, match=f"algorithm.{name} needs each site's update, which a sum does not give"):
        check_deployment(SECRET, trial, 4)


def test_a_server_may_not_have_both_secrets_of_a_site(tmp_path: Path) -> None:
    """Asked for the seed and for the key of one site, a site refuses."""

    class Greedy(InProcess):
        def ask(self, kind, questions, round, timeout, heard=None):  # type: ignore[no-untyped-def]
            for content in questions.values():
                record = content.config_records.get(RECORD_KEY_CONFIGS, {})
                if record.get(Key.STAGE) == Stage.UNMASK:
                    record[Key.DEAD_NODE_ID_LIST] = list(record[Key.ACTIVE_NODE_ID_LIST])
            return super().ask(kind, questions, round, timeout, heard)

    with pytest.raises(UserError, match="still no answer"):
        deploy(trial_of("fedavg", rounds=1), tmp_path, SECRET, Greedy(tmp_path, 4))
    events = read_events(next((tmp_path / "runs").rglob("events.jsonl")))
    assert any("both secrets" in event.get("why", "") for event in events if event["event"] == "left out")


def test_groupdro_is_refused_unless_risks_may_be_seen(tmp_path: Path) -> None:
    trial = trial_of("groupdro")
    with pytest.raises(UserError, match="risks_may_be_seen = true"):
        check_deployment(SECRET, trial, 4)
    seen = DeploymentSettings(patience=1.0, secure_aggregation=True, risks_may_be_seen=True)
    check_deployment(seen, trial, 4)
    rounds, simulation = deploy(trial, tmp_path, seen), simulation_of(trial)
    torch.testing.assert_close(rounds.server.weights, simulation.server.weights[0], rtol=0, atol=1e-5)
    for left, right in zip(rounds.server.params.values(), simulation.server.params.values(), strict=True):
        torch.testing.assert_close(left, right[0], rtol=0, atol=1e-5)
    with pytest.raises(UserError, match="at least 3 sites"):
        check_deployment(SECRET, trial_of("fedavg", clients=2), 2)
    with pytest.raises(UserError, match="uniform"):
        check_deployment(SECRET, trial_of("fedavg", weights="samples"), 4)


def test_together_with_differential_privacy(tmp_path: Path) -> None:
    both = DeploymentSettings(patience=1.0, secure_aggregation=True, noise_multiplier=1e-6, noise_clip=1e3)
    trial = trial_of("ditto", rounds=2)
    rounds, simulation = deploy(trial, tmp_path, both), simulation_of(trial)
    for left, right in zip(rounds.server.params.values(), simulation.server.params.values(), strict=True):
        torch.testing.assert_close(left, right[0], rtol=0, atol=2e-2)
    assert all(torch.isfinite(leaf).all() for leaf in tree.leaves(rounds.server))


def test_masks_are_a_stream_of_their_secret() -> None:
    assert numpy.array_equal(masked_vectors.mask(b"x" * 32, 100), masked_vectors.mask(b"x" * 32, 200)[:100])
    assert not numpy.array_equal(masked_vectors.mask(b"x" * 32, 100), masked_vectors.mask(b"y" * 32, 100))
    numbers = numpy.array([-9.0, -8.0, 0.0, 1e-7, 8.0, 9.0], dtype=numpy.float32)
    assert masked_vectors.quantize(numbers, 8.0, 2**29).tolist() == [0, 0, 2**28, 2**28 + 3, 2**29, 2**29]
    with pytest.raises(Rejected, match="not a masked update"):
        masked_vectors.decode_masked(RecordDict(), 3)
