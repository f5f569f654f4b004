"""Runs of real processes that are killed, of every kind that keeps more than a model: they end with the same bits.

What a run is compared with is the same run in this process, never disturbed, at sites with the same secrets.
"""

import json
import shutil
import signal
from pathlib import Path

import pytest

from perinvfl.core import tree
from perinvfl.flower import privacy, rounds
from perinvfl.flower.codec import Rejected
from perinvfl.flower.server_run import AGREEMENT, run_folder
from perinvfl.flower.settings import read_settings
from perinvfl.flower.transport import Answer
from perinvfl.runs.experiment import build_experiment, read_table
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import read_events
from tests.commands import until
from tests.flower.deployed import assert_equal, plain, state_at
from tests.flower.inprocess import InProcess
from tests.flower.process_files import lost_rounds, progress_of, server_state
from tests.flower.processes import ODD, SITES, Processes

ROUNDS, NOISE = 5, 2.0
EVERYBODY = "minimum_replies = 4\nround_timeout = 4\n"  # so that kills change no number
DIGITS = "benchmark = 'rc_mnist'\ntrain_per_client = 24\nholdout = 6\ntest_per_client = 6\n"
INFERRED = "[contexts]\ninfer = 'hard'\nevery = 2\nreference_rounds = 2\nreference_rate = 0.02\n"
KINDS: dict[str, dict[str, str]] = {
    "masked": {"settings": f"{EVERYBODY}secure_aggregation = true"},
    "noised": {"settings": f"{EVERYBODY}noise_multiplier = {NOISE}"},
    "inferred": {"settings": EVERYBODY, "data": DIGITS, "more": INFERRED},
    "partial": {"settings": "minimum_replies = 2\nround_timeout = 2.5"},
}


def kill_and_resume(federation: Processes, file: Path, last: tuple[int, int]) -> None:
    """A site in the middle of its first step, then the run, and after so many rounds of the last phase the server with
    another site. last: not where notes are taken anew, for which nobody waits: a site that is away keeps its own."""
    federation.behave(hang=True)
    run = federation.begin(file)
    until(federation.behaviour.with_name("hanging").exists, "a site is in the middle of a step", run)
    federation.kill(ODD)
    federation.behave()
    federation.start(ODD)
    until(lambda: progress_of(federation, file) >= (0, 1), "a round is done", run, seconds=120)
    run.kill()
    run.communicate()
    run = federation.begin(file, "--resume")
    until(lambda: progress_of(federation, file) >= last, "the run is in its last phase", run, seconds=120)
    for name in ("b", "up"):
        federation.kill(name, signal.SIGKILL)
    run.kill()
    run.communicate()
    for name in ("up", "b"):
        federation.start(name)
    until((federation.folder / "server" / "control.key").exists, "the server runs again")
    federation.run(file, "--resume")


def undisturbed(
    federation: Processes, file: Path, folder: Path, place: Path, patch: pytest.MonkeyPatch
) -> rounds.Rounds:
    """The same run at sites in this process, by the same name and with the same secrets, to which noise is due. Where
    the record says that a round went on without a site, its answer is lost here too."""
    table = read_table(file)
    (trial,), settings = build_experiment(table, file.stem).trials, read_settings(table)
    run = json.loads((folder / AGREEMENT).read_text())["run"]
    patch.setattr(rounds.secrets, "token_hex", lambda size: run.rpartition("-")[2])
    lost = lost_rounds(folder)
    for client, site in enumerate(SITES):
        (place / f"site-{client}").mkdir(parents=True)
        if (federation.site(site) / "noise.key").exists():
            shutil.copy(federation.site(site) / "noise.key", place / f"site-{client}")

    def meddle(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        return Rejected("lost") if kind == "train" and round in lost[client] else answer

    again = rounds.Rounds(trial, settings, list(SITES), InProcess(place, 4, meddle), place / "runs", Progress())
    again.run(resume=False)
    return again


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed_it_ends_with_the_same_bits(
    kind: str, federation: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = federation.experiment(f"killed-{kind}", ROUNDS, **KINDS[kind])
    kill_and_resume(federation, file, last=(1, 1) if kind == "inferred" else (0, 2))
    (folder,) = federation.records(file)
    whole = undisturbed(federation, file, folder, tmp_path, monkeypatch)
    assert folder.name == run_folder(whole.trial, whole.settings)
    assert_equal(server_state(folder), tree.named_leaves(whole.server, "server"))
    for client, site in enumerate(SITES):
        assert_equal(state_at(federation.site(site), folder), state_at(tmp_path / f"site-{client}", whole.folder))
    ours, theirs = (plain(read_events(place / "events.jsonl")) for place in (folder, whole.folder))
    spent = [event.pop("privacy", None) for event in ours][-1]
    for event in (*ours, *theirs):
        event.pop("privacy", None), event.pop("left_out", None)
    assert ours == theirs
    if kind == "noised":
        uploads = json.loads((folder / "spent.json").read_bytes().splitlines()[-1])
        assert min(uploads) >= ROUNDS and max(uploads) == spent["uploads"] > ROUNDS, "steps asked for twice count twice"
        assert spent["epsilon"] == pytest.approx(privacy.spent(NOISE, max(uploads), 1e-5), abs=1e-6)
    if kind == "partial":
        assert any(lost_rounds(folder).values()), "some rounds went on with fewer replies than there are sites"
