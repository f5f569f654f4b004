"""A server that stops resumes, waits for enough replies, and never runs twice."""

from pathlib import Path
from typing import Any

import pytest
import torch

from perinvfl.core import tree
from perinvfl.errors import UserError
from perinvfl.flower.client_app import open_site
from perinvfl.flower.codec import Rejected
from perinvfl.flower.rounds import Rounds
from perinvfl.flower.transport import Answer
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import read_events
from tests.commands import child
from tests.flower.deployed import SETTINGS, assert_equal, deploy, plain, site_state, sites, trial_of
from tests.flower.inprocess import InProcess


@pytest.mark.parametrize("name", ["perinvfl", "scaffold"])
def test_a_server_that_stops_anywhere_goes_on(name: str, tmp_path: Path) -> None:
    """Stopped at the n-th question, resumed, and again at the next: the same models as never stopped."""
    trial = trial_of(name, rounds=4)
    whole = deploy(trial, tmp_path / "whole")

    class Stop(InProcess):
        stop_at = 0

        def ask(self, kind, questions, round, timeout, heard=None):  # type: ignore[no-untyped-def]
            self.stop_at -= 1
            if self.stop_at == 0:
                raise KeyboardInterrupt
            answers = super().ask(kind, questions, round, timeout, heard)
            if self.stop_at == -1000:
                raise KeyboardInterrupt
            return answers

    folder = tmp_path / "stopped"
    post = Stop(folder, 4)
    stops = 0
    for stop_at in [1, 2, 2, 3, 3, 1, -999, -999, 100]:
        post.stop_at = stop_at
        rounds = Rounds(trial, SETTINGS, sites(trial), post, folder / "runs", Progress())
        try:
            rounds.run(resume=True)
        except KeyboardInterrupt:
            stops += 1
    assert stops >= 6
    for left, right in zip(tree.leaves(rounds.server), tree.leaves(whole.server), strict=True):
        assert torch.equal(left, right)
    for client in range(4):
        assert_equal(site_state(rounds, folder, client), site_state(whole, tmp_path / "whole", client))


ALIGNED: dict[str, Any] = {
    "data": {
        "benchmark": "rc_mnist",
        "p_train": [0.9, 0.8, 0.7],
        "train_per_client": 24,
        "holdout": 6,
        "test_per_client": 6,
    },
    "contexts": {"infer": "hard", "align": "rotations", "every": 2, "reference_rounds": 3, "reference_rate": 0.02},
    "model": {"hidden": [5]},
    "training": {"rounds": 5, "batch_size": 6, "evaluate_every": 2, "executor": "loop"},
    "algorithm": {"name": "perinvfl", "learning_rate": 0.05, "personal_learning_rate": 0.05},
}


def test_server_and_sites_stopped_in_every_phase_resume_to_the_same_bits(tmp_path: Path) -> None:
    """Stopped at every second question, before or after its answers, the sites begun anew each time."""
    trial = build_experiment(ALIGNED).trials[0]
    whole = deploy(trial, tmp_path / "whole")

    class Stop(InProcess):
        left, answered = 2, False

        def ask(self, kind, questions, round, timeout, heard=None):  # type: ignore[no-untyped-def]
            self.left -= 1
            if self.left == 0 and not self.answered:
                raise KeyboardInterrupt
            answers = super().ask(kind, questions, round, timeout, heard)
            if self.left == 0:
                raise KeyboardInterrupt  # what the sites did is lost to the server
            return answers

    folder, phases, stops, over = tmp_path / "stopped", set(), 0, False
    transport = Stop(folder, 3)
    while not over:
        transport.left, transport.answered = 2, bool(stops % 2)
        open_site.cache_clear()  # as a process that was killed: only what is on disk is left
        rounds = Rounds(trial, SETTINGS, sites(trial), transport, folder / "runs", Progress())
        try:
            rounds.run(resume=True)
            over = True
        except KeyboardInterrupt:
            stops += 1
            phases.add(rounds.phase.name)
    assert stops >= 15 and phases == {"reference", "pilot", "main"}
    assert_equal(tree.named_leaves(rounds.server, "server"), tree.named_leaves(whole.server, "server"))
    for client in range(3):
        assert_equal(site_state(rounds, folder, client), site_state(whole, tmp_path / "whole", client))
    ended, expected = (read_events(run.folder / "events.jsonl") for run in (rounds, whole))
    assert plain(ended) == plain(expected)


def test_killed_in_a_write_and_again_while_it_resumes(tmp_path: Path) -> None:
    """Server and sites at once, with noise: the same bits, so the same noise."""
    done = child(Path(__file__).parents[1] / "killed_twice.py", "server", tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) >= 16


def test_minimum_replies_and_patience(tmp_path: Path) -> None:
    trial = trial_of("fedavg", rounds=2)
    tries: list[int] = []

    def fail_twice(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        if kind == "train" and client == 0:
            tries.append(round)
        return Rejected("lost") if kind == "train" and client != 0 and len(tries) <= 2 else answer

    settings = type(SETTINGS)(patience=5.0, minimum_replies=3, poll=0.01)
    rounds = deploy(trial, tmp_path / "again", settings, InProcess(tmp_path / "again", 4, fail_twice))
    assert tries == [0, 0, 0, 1] and rounds.books.used == [3, 3, 3, 3]

    def never(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        return None if kind == "train" and client else answer

    impatient = type(SETTINGS)(patience=0.5, minimum_replies=3, poll=0.01)
    with pytest.raises(UserError, match="still no answer from site-1, site-2, site-3"):
        deploy(trial, tmp_path / "never", impatient, InProcess(tmp_path / "never", 4, never))
    absent = InProcess(tmp_path / "absent", 4)
    absent.away = {2}
    with pytest.raises(UserError, match="still no answer from site-2"):
        deploy(trial, tmp_path / "absent", impatient, absent)
