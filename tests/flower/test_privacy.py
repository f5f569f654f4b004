"""Differential privacy: what is added, and that the ε reported is the ε spent."""

import dataclasses
import errno
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perinvfl.core import tree
from perinvfl.errors import UserError
from perinvfl.flower import privacy
from perinvfl.flower.credentials import write_secret
from perinvfl.flower.server_state import Bookkeeping
from perinvfl.flower.settings import DeploymentSettings, check_deployment
from perinvfl.flower.site import Site
from perinvfl.flower.transport import Answer
from perinvfl.runs.records import read_events
from tests.flower.deployed import deploy, trial_of
from tests.flower.inprocess import InProcess
from tests.flower.site_rounds import assignment, model

PRIVATE = DeploymentSettings(patience=1.0, noise_multiplier=2.0, noise_clip=0.5)


def phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 4.0])
def test_delta_is_the_closed_form(mu: float, epsilon: float) -> None:
    right = phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)
    assert privacy.delta_of(mu, epsilon) == pytest.approx(right, rel=1e-9, abs=1e-15)


def test_known_values() -> None:
    """δ of one unit-noise release at ε = 1 is Φ(−1/2) − e Φ(−3/2) = 0.1269...; a total-variation bound at ε = 0."""
    assert privacy.delta_of(1.0, 1.0) == pytest.approx(0.126936737, abs=1e-8)
    assert privacy.spent(1.0, 1, 0.126936737) == pytest.approx(1.0, abs=1e-6)
    assert privacy.delta_of(1.0, 0.0) == pytest.approx(2 * phi(0.5) - 1)
    # The same mechanism in the PLD accountant of dp-accounting 0.6.
    for z, uploads, epsilon in ((1, 1, 4.3771781), (1, 10, 17.8565868), (3, 100, 19.1307678), (10, 1000, 17.8565868)):
        assert privacy.spent(z, uploads, 1e-5) == pytest.approx(epsilon, abs=1e-6)


@given(st.floats(0.3, 20.0), st.integers(1, 2000), st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_spent_is_exact_below_the_renyi_bound_and_composes(z: float, uploads: int, delta: float) -> None:
    epsilon = privacy.spent(z, uploads, delta)
    if epsilon > 0:
        assert privacy.delta_of(math.sqrt(uploads) / z, epsilon) == pytest.approx(delta, rel=1e-4)
    rho = uploads / (2 * z * z)  # zero-concentrated: ε ≤ ρ + 2 √(ρ log 1/δ) (Bun & Steinke, 2016)
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-9
    assert epsilon == pytest.approx(privacy.spent(z / math.sqrt(uploads), 1, delta))
    assert privacy.spent(z, 0, delta) == 0.0 and privacy.spent(z, uploads + 1, delta) >= epsilon


def test_clip_and_noise() -> None:
    update = {"a": torch.full((30,), 3.0), "b": torch.full((40,), 4.0)}
    assert privacy.norm(privacy.clip(update, 2.0)) == pytest.approx(2.0)
    assert privacy.clip(update, 1e3) is update
    zeros = {"a": torch.zeros(200_000)}
    noise = privacy.add_noise(zeros, 3.0, torch.Generator().manual_seed(0))["a"]
    assert float(noise.mean()) == pytest.approx(0, abs=0.05) and float(noise.std()) == pytest.approx(3.0, abs=0.05)


def test_uploads_are_clipped_and_noised_and_the_budget_is_reported(tmp_path: Path) -> None:
    trial = trial_of("fedavg", rounds=3)
    seen: list[float] = []

    def look(kind: str, client: int, round: int, answer: Answer) -> Answer:
        if kind == "train":
            flat = torch.frombuffer(bytearray(answer.array_records["update"]["flat"].data), dtype=torch.float32)  # type: ignore[union-attr]
            assert "risk" not in answer.metric_records["numbers"]  # type: ignore[union-attr]
            seen.append(float(flat.norm()))
        return answer

    rounds = deploy(trial, tmp_path / "one", PRIVATE, InProcess(tmp_path / "one", 4, look))
    size = sum(leaf.numel() for leaf in rounds.server.params.values())
    for length in seen:  # noise of deviation z C = 1 in every entry, and at most C besides
        assert math.sqrt(size) * 0.6 < length < math.sqrt(size) * 1.5 + 0.5
    end = read_events(rounds.folder / "events.jsonl")[-1]
    assert end["privacy"] == {
        "epsilon": pytest.approx(privacy.spent(2.0, 3, 1e-5), abs=1e-6), "delta": 1e-5, "uploads": 3,
    }  # fmt: skip
    assert read_events(rounds.folder / "events.jsonl")[1]["risks"] == [None] * 4
    # Another federation has other secrets, so other noise; the run's id says that it is private.
    other = deploy(trial, tmp_path / "two", PRIVATE)
    assert any(
        not torch.equal(a, b) for a, b in zip(tree.leaves(rounds.server), tree.leaves(other.server), strict=True)
    )
    assert rounds.folder.name == other.folder.name != trial.folder


def test_asked_again_for_a_round_a_site_gives_the_same_noise(tmp_path: Path) -> None:
    trial = trial_of("fedavg", rounds=1)
    answers: list[bytes] = []

    def lose_first(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        if kind == "train" and client == 0:
            answers.append(bytes(answer.array_records["update"]["flat"].data))  # type: ignore[union-attr]
            return None if len(answers) == 1 else answer
        return answer

    settings = DeploymentSettings(patience=5.0, noise_multiplier=1.0, minimum_replies=4, poll=0.01)
    rounds = deploy(trial, tmp_path, settings, InProcess(tmp_path, 4, lose_first))
    assert len(answers) == 2 and answers[0] == answers[1]
    assert rounds.books.uploads == [2, 2, 2, 2]  # counted all the same: the ε reported is never below the spent one
    assert (tmp_path / "site-0" / "noise.key").stat().st_mode & 0o777 == 0o600


def test_another_question_of_the_same_round_has_noise_of_its_own(tmp_path: Path) -> None:
    """Else a server that asks twice, with two models, would have the difference of two updates without any noise."""
    site, plain = Site(tmp_path / "noised"), Site(tmp_path / "plain")
    asked = dataclasses.replace(assignment(0, -1), noise=(5.0, 100.0), tell_risk=False)
    noise = []
    for seed in (1, 2, 1):
        noised, update = site.train(asked, model(seed)).update, plain.train(assignment(0, -1), model(seed)).update
        noise.append(torch.cat([(noised[name] - update[name]).flatten() for name in update]))
    first, second, again = noise
    assert torch.equal(first, again), "the same question has the same answer"
    assert 250 < float(first.std()) < 1000 and 250 < float((first - second).std() / math.sqrt(2)) < 1000
    other = dataclasses.replace(asked, asked=trial_of("perinvfl", weights="samples").asked())
    third = site.train(other, model(1)).update
    assert not torch.equal(first, torch.cat([(third[name] - update[name]).flatten() for name in update]))


def test_a_run_that_lost_its_checkpoint_counts_what_it_asked_for_before(tmp_path: Path) -> None:
    trial = trial_of("fedavg", rounds=2)
    first = deploy(trial, tmp_path, PRIVATE)
    for name in ("server.pt", "events.jsonl", "finished.json", "scores.json"):
        (first.folder / name).unlink(missing_ok=True)
    again = deploy(trial, tmp_path, PRIVATE)
    assert first.books.uploads == [2] * 4 and again.books.uploads == [4] * 4
    assert again.agreement.run != first.agreement.run, "its noise is drawn anew"


def test_what_cannot_be_private_is_refused() -> None:
    with pytest.raises(UserError, match="GroupDRO needs the risk of each site"):
        check_deployment(PRIVATE, trial_of("groupdro"), 4)
    check_deployment(PRIVATE, trial_of("perinvfl"), 4)


@pytest.mark.parametrize("left", [b"", bytes(31)], ids=["emptied", "cut"])
def test_noise_that_could_be_guessed_is_not_used(left: bytes, tmp_path: Path) -> None:
    site, asked = Site(tmp_path), dataclasses.replace(assignment(0, -1), noise=(5.0, 100.0), tell_risk=False)
    site.train(asked, model(1))
    (tmp_path / "noise.key").write_bytes(left)
    with pytest.raises(UserError, match=r"noise\.key of this site is damaged"):
        site.train(asked, model(2))


def test_a_secret_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(UserError, match="No space left on device"):
            write_secret(tmp_path / "noise.key", bytes(32))
    assert not list(tmp_path.iterdir())
    write_secret(tmp_path / "noise.key", bytes(32))
    with pytest.raises(UserError, match="File exists"):
        write_secret(tmp_path / "noise.key", bytes(32))


@pytest.mark.parametrize("left", [b"[1, 2", b'["a", 1]', b"[1, -1]", b"[1, 1.5]", b"[1]", b"[" * 20_000, b"\xff", b""])
def test_a_damaged_budget_is_one_sentence(left: bytes, tmp_path: Path) -> None:
    """Also one of an earlier version, which has no digest."""
    (tmp_path / "spent.json").write_bytes(b"[3, 4]")
    books = Bookkeeping(2)
    books.recall_spending(tmp_path)
    assert books.uploads == [3, 4]
    (tmp_path / "spent.json").write_bytes(left)
    with pytest.raises(UserError, match=r"spent\.json is damaged"):
        books.recall_spending(tmp_path)
