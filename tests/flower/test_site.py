"""A site's states survive a kill at any moment, and a round the server did not use does not advance them."""

import shutil
from pathlib import Path

import pytest
import torch

from perinvfl.core import tree
from perinvfl.core.files import only_one
from perinvfl.errors import UserError
from perinvfl.flower.assignment import NEVER
from perinvfl.flower.rounds import Rounds
from perinvfl.flower.site import Site
from perinvfl.flower.state_store import read_state
from perinvfl.flower.transport import Answer
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import read_events
from tests.commands import child
from tests.flower.deployed import SETTINGS, assert_equal, deploy, sites, trial_of
from tests.flower.inprocess import InProcess
from tests.flower.site_rounds import assignment, kept, model


def test_a_round_counts_only_once_the_server_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path)
    first = site.train(assignment(0, NEVER), model(1))
    assert kept(site, NEVER) == {}  # not used so far
    again = site.train(assignment(0, NEVER), model(1))  # asked again: the same
    assert_equal(tree.named_leaves(first, "u"), tree.named_leaves(again, "u"))
    site.train(assignment(1, 0), model(2))  # round 0 counts now
    one = kept(site, 0)
    assert int(one["client.last"]) == 0
    site.train(assignment(2, 0), model(3))  # round 1 did not count
    assert_equal(kept(site, 0), one)
    site.commit(assignment(3, 2))
    assert int(kept(site, 2)["client.last"]) == 2


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.train(assignment(0, NEVER), model(1))
    site.train(assignment(1, 0), model(1))
    with pytest.raises(ValueError, match="comes from before it"):
        site.train(assignment(0, NEVER), model(1))
    with pytest.raises(ValueError, match="the state of step 15 is not here"):
        site.train(assignment(8, 7), model(1))
    with pytest.raises(ValueError, match="cannot name a run"):
        site.train(assignment(0, NEVER, run="../elsewhere"), model(1))
    with pytest.raises(ValueError, match="does not fit this site's data"):
        site.train(assignment(1, 0), {"0.weight": torch.zeros(3, 3)})


def test_killed_at_any_step_of_any_round_a_site_ends_as_if_never_killed(tmp_path: Path) -> None:
    """Before, in the middle of and after every write, and around the rename that commits."""
    done = child(Path(__file__).parent / "killed_site.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10


@pytest.mark.parametrize("name", ["perinvfl", "ditto", "groupdro", "ftfa"])
def test_answers_lost_on_the_way_leave_no_trace(name: str, tmp_path: Path) -> None:
    """A site whose every second answer is lost ends where one ends that was never asked for those rounds."""
    trial = trial_of(name, rounds=6)

    def lose(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        return None if kind == "train" and client == 2 and round % 2 else answer

    lossy = deploy(trial, tmp_path / "lossy", transport=InProcess(tmp_path / "lossy", 4, lose))

    class Skips(InProcess):
        def online(self) -> list[int]:
            done = sum(1 for kind, client, _ in self.asked if kind == "train" and client == 0)
            return [0, 1, 3] if done % 2 and done < 6 else [0, 1, 2, 3]

    skipped = deploy(trial, tmp_path / "skipped", transport=Skips(tmp_path / "skipped", 4))
    for left, right in zip(tree.leaves(lossy.server), tree.leaves(skipped.server), strict=True):
        assert torch.equal(left, right)
    for rounds, folder in ((lossy, "lossy"), (skipped, "skipped")):
        assert rounds.books.used == [11, 11, 9, 11]  # steps of rounds 5 and 4
        assert (tmp_path / folder / "site-2" / "state" / rounds.agreement.run / "committed.pt").exists()


def test_a_site_whose_disk_was_lost_is_left_out_and_named(tmp_path: Path) -> None:
    trial = trial_of("perinvfl", rounds=4)

    def lose_disk(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        if kind == "train" and client == 1 and round == 1:
            shutil.rmtree(tmp_path / "site-1")
        return answer

    rounds = deploy(trial, tmp_path, transport=InProcess(tmp_path, 4, lose_disk))
    assert rounds.books.used == [7, 3, 7, 7]
    events = read_events(rounds.folder / "events.jsonl")
    why = [event["why"] for event in events if event["event"] == "left out" and event["site"] == "site-1"]
    assert len(why) == 5 and all("the state of step 3 is not here" in sentence for sentence in why)
    last = [event for event in events if event["event"] == "evaluation"][-1]
    assert last["absent"] == ["site-1"]
    assert [score is None for score in last["personal"]["0.1"]] == [False, True, False, False]


def test_two_processes_never_work_on_one_run(tmp_path: Path) -> None:
    trial = trial_of("fedavg", rounds=1)
    post = InProcess(tmp_path, 4)
    first = Rounds(trial, SETTINGS, sites(trial), post, tmp_path / "runs", Progress())
    with only_one(first.folder / "server.lock", "busy"), pytest.raises(UserError, match="Another process is at work"):
        first.run(resume=False)
    first.run(resume=False)


def test_without_evaluations_the_last_round_is_committed_all_the_same(tmp_path: Path) -> None:
    trial = trial_of("perinvfl", rounds=2)
    settings = type(SETTINGS)(patience=1.0, evaluate=False)
    post = InProcess(tmp_path, 4)
    rounds = deploy(trial, tmp_path, settings, post)
    assert {kind for kind, _, _ in post.asked} == {"query", "train", "query.commit"}
    assert read_events(rounds.folder / "events.jsonl")[0]["notes"]["constant"] == {}
    for client in range(4):
        path = tmp_path / f"site-{client}" / "state" / rounds.agreement.run / "committed.pt"
        assert read_state(path).step == 3
