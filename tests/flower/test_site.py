"""A site's states survive a kill at any moment, and a round the server did not use does not advance them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from commands import ROOT, environment
from flower.inprocess import InProcess
from flower.test_parity import SETTINGS, deploy, sites, trial_of

from perinvfl.core import checkpoint, tree
from perinvfl.core.files import only_one
from perinvfl.core.seeding import generator
from perinvfl.core.tree import Params
from perinvfl.data.own.files import FileSettings
from perinvfl.data.registry import build_federation
from perinvfl.errors import UserError
from perinvfl.flower.codec import Rejected
from perinvfl.flower.rounds import Rounds
from perinvfl.flower.site import NEVER, Assignment, Site, SiteData, StateStore, load_share, make_worker, read_share
from perinvfl.flower.transport import Answer
from perinvfl.flower.watch import Watch
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.records import read_events


def assignment(round: int, used: int, run: str = "run") -> Assignment:
    return Assignment(run, trial_of("perinvfl").asked(), 1, 4, 2, round, used, 1.0)


def model(seed: int) -> Params:
    return make_worker(None, assignment(0, NEVER).trial).model.init(generator(seed, "weights"))


def kept(site: Site, used: int, run: str = "run") -> dict[str, torch.Tensor]:
    initial = make_worker(None, assignment(0, NEVER).trial).initial
    return tree.named_leaves(site.vault.settle(run, used, initial), "client")


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for key in left:
        assert torch.equal(left[key], right[key]), key


def test_a_round_counts_only_once_the_server_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path)
    first = site.train(assignment(0, NEVER), model(1))
    initial = kept(Site(tmp_path / "other"), NEVER)
    assert_equal(kept(site, NEVER), initial)  # not used so far
    again = site.train(assignment(0, NEVER), model(1))  # asked again: the same
    assert_equal(tree.named_leaves(first, "u"), tree.named_leaves(again, "u"))
    site.train(assignment(1, 0), model(2))  # round 0 counts now
    one = kept(site, 0)
    assert any(not torch.equal(one[key], initial[key]) for key in one)
    site.train(assignment(2, 0), model(3))  # round 1 did not count
    assert_equal(kept(site, 0), one)
    site.commit(assignment(3, 2), model(4))
    assert int(kept(site, 2)["client.last"]) == 2


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.train(assignment(0, NEVER), model(1))
    site.train(assignment(1, 0), model(1))
    with pytest.raises(ValueError, match="comes from before it"):
        site.train(assignment(0, NEVER), model(1))
    with pytest.raises(ValueError, match="the state of round 7 is not here"):
        site.train(assignment(8, 7), model(1))
    with pytest.raises(ValueError, match="cannot name a run"):
        site.train(assignment(0, NEVER, run="../elsewhere"), model(1))
    with pytest.raises(ValueError, match="does not fit this site's data"):
        site.train(assignment(1, 0), {"0.weight": torch.zeros(3, 3)})


def test_killed_at_any_step_of_any_round_a_site_ends_as_if_never_killed(tmp_path: Path) -> None:
    """Before, in the middle of and after every write, and around the rename that commits."""
    line = [sys.executable, str(Path(__file__).parent / "killed_site.py"), str(tmp_path)]
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(line, capture_output=True, text=True, env={**environment(), "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10


@pytest.mark.parametrize("name", ["perinvfl", "ditto", "groupdro", "ftfa"])
def test_answers_lost_on_the_way_leave_no_trace(name: str, tmp_path: Path) -> None:
    """A site whose every second answer is lost ends where one ends that was never asked for those rounds."""
    trial = trial_of(name, rounds=6)

    def lose(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        return None if kind == "train" and client == 2 and round % 2 else answer

    lossy = deploy(trial, tmp_path / "lossy", post=InProcess(tmp_path / "lossy", 4, lose))

    class Skips(InProcess):
        def online(self) -> list[int]:
            done = sum(1 for kind, client, _ in self.asked if kind == "train" and client == 0)
            return [0, 1, 3] if done % 2 and done < 6 else [0, 1, 2, 3]

    skipped = deploy(trial, tmp_path / "skipped", post=Skips(tmp_path / "skipped", 4))
    for left, right in zip(tree.leaves(lossy.server), tree.leaves(skipped.server), strict=True):
        assert torch.equal(left, right)
    for rounds, folder in ((lossy, "lossy"), (skipped, "skipped")):
        assert rounds.used == [5, 5, 4, 5]
        assert (tmp_path / folder / "site-2" / "state" / rounds.begun.run / "committed.pt").exists()


def test_a_server_that_stops_anywhere_goes_on(tmp_path: Path) -> None:
    """Stopped at the n-th question, resumed, and again at the next: the same models as never stopped."""
    trial = trial_of("perinvfl", rounds=4)
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
        rounds = Rounds(trial, SETTINGS, sites(trial), post, folder / "runs", Watch())
        try:
            rounds.run(resume=True)
        except KeyboardInterrupt:
            stops += 1
    assert stops >= 6
    for left, right in zip(tree.leaves(rounds.server), tree.leaves(whole.server), strict=True):
        assert torch.equal(left, right)
    for client in range(4):
        states = []
        for run, place in ((rounds, folder), (whole, tmp_path / "whole")):
            vault = StateStore(place / f"site-{client}" / "state")
            initial = make_worker(None, run._assignment("x", client, 0, 1.0, run.begun.contexts).trial).initial
            states.append(tree.named_leaves(vault.settle(run.begun.run, 3, initial), "client"))
        assert_equal(*states)


def test_minimum_replies_and_patience(tmp_path: Path) -> None:
    trial = trial_of("fedavg", rounds=2)
    tries: list[int] = []

    def fail_twice(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        if kind == "train" and client == 0:
            tries.append(round)
        return Rejected("lost") if kind == "train" and client != 0 and len(tries) <= 2 else answer

    settings = type(SETTINGS)(patience=5.0, minimum_replies=3, poll=0.01)
    rounds = deploy(trial, tmp_path / "again", settings, InProcess(tmp_path / "again", 4, fail_twice))
    assert tries == [0, 0, 0, 1] and rounds.used == [1, 1, 1, 1]

    def never(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        return None if kind == "train" and client else answer

    impatient = type(SETTINGS)(patience=0.5, minimum_replies=3, poll=0.01)
    with pytest.raises(UserError, match="still no word from site-1, site-2, site-3"):
        deploy(trial, tmp_path / "never", impatient, InProcess(tmp_path / "never", 4, never))
    absent = InProcess(tmp_path / "absent", 4)
    absent.away = {2}
    with pytest.raises(UserError, match="still no word from site-2"):
        deploy(trial, tmp_path / "absent", impatient, absent)


def test_a_site_whose_disk_was_lost_is_left_out_and_named(tmp_path: Path) -> None:
    trial = trial_of("perinvfl", rounds=4)

    def lose_disk(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        if kind == "train" and client == 1 and round == 1:
            shutil.rmtree(tmp_path / "site-1")
        return answer

    rounds = deploy(trial, tmp_path, post=InProcess(tmp_path, 4, lose_disk))
    assert rounds.used == [3, 1, 3, 3]
    events = read_events(rounds.folder / "events.jsonl")
    why = [event["why"] for event in events if event["event"] == "left out" and event["site"] == "site-1"]
    assert len(why) == 4 and all("the state of round 1 is not here" in sentence for sentence in why)
    last = [event for event in events if event["event"] == "evaluation"][-1]
    assert last["absent"] == ["site-1"] and len(last["personal"]["0.1"]) == 3


def test_two_processes_never_work_on_one_run(tmp_path: Path) -> None:
    trial = trial_of("fedavg", rounds=1)
    post = InProcess(tmp_path, 4)
    first = Rounds(trial, SETTINGS, sites(trial), post, tmp_path / "runs", Watch())
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
        assert int(kept_round(tmp_path / f"site-{client}", rounds.begun.run)) == 1


def kept_round(folder: Path, run: str) -> int:
    return int(checkpoint.load(folder / "state" / run / "committed.pt")["round"])


def test_a_site_with_its_own_table_has_what_it_has_in_the_simulation(tmp_path: Path) -> None:
    header, rng = "hospital,year,a,b,ill", numpy.random.default_rng(0)
    rows = [
        f"h{i % 2},{2020 + i // 2 % 3},{a:.6f},{b:.6f},{i // 6 % 2}"
        for i, (a, b) in enumerate(rng.normal(size=(60, 2)))
    ]
    (tmp_path / "all.csv").write_text("\n".join([header, *rows]) + "\n")
    shared: dict[str, Any] = {"label": "ill", "context": "year", "test_contexts": (2022,), "mean": (0.1, 0.2)}
    shared |= {"scale": (1.0, 2.0), "classes": (0, 1)}
    whole = build_federation("file", FileSettings(path=str(tmp_path / "all.csv"), client="hospital", **shared), 3)
    settings = {"benchmark": "sites", "clients": 2, "client": "hospital", **shared}
    for client in range(2):
        own = tmp_path / f"h{client}.csv"
        own.write_text("\n".join([header, *(row for row in rows if row.startswith(f"h{client}"))]) + "\n")
        share = load_share(own, json.dumps([{"data": settings, "seed": 3}, client, 2, 2]))
        assert share.spectrum == whole.spectrum and set(share.tests) == {*whole.tests, "validation"}
        for one, other in zip(share.train, whole.train, strict=True):
            assert torch.equal(one, other[client][: len(one)])
        assert torch.equal(share.tests["2022"].x, whole.tests["2022"].x[client][: len(share.tests["2022"].x)])
    with pytest.raises(UserError, match="holds 2 clients"):
        load_share(tmp_path / "all.csv", json.dumps([{"data": settings, "seed": 3}, 0, 2, 2]))


def test_arrays_bring_tests_or_hold_contexts_out(tmp_path: Path) -> None:
    x = numpy.random.default_rng(0).normal(size=(30, 6))
    arrays = {"x": x, "y": x[:, 0] > 0, "context": numpy.arange(30) % 2}
    numpy.savez(tmp_path / "a.npz", **arrays, **{"test/later/x": x[:9], "test/later/y": x[:9, 0] > 0})
    settings = {"benchmark": "sites", "clients": 2, "test_contexts": [1]}
    with pytest.raises(UserError, match="brings tests of its own"):
        load_share(tmp_path / "a.npz", json.dumps([{"data": settings, "seed": 3}, 0, 2, 2]))


def test_a_site_with_its_own_file(tmp_path: Path) -> None:
    rng = numpy.random.default_rng(0)
    x, y = rng.normal(size=(30, 6)), rng.integers(0, 2, 30)
    arrays = {"x": x, "y": y, "context": numpy.arange(30) % 2, "test/later/x": x[:9], "test/later/y": y[:9]}
    numpy.savez(tmp_path / "a.npz", **arrays)
    share = read_share(tmp_path / "a.npz", "binary", 1, ())
    assert share.train.x.shape == (30, 6) and share.train.x.dtype == torch.float32
    assert share.contexts == 2 and list(share.tests) == ["later"] and share.spectrum == ("later",)
    from safetensors.torch import save_file

    save_file({key: torch.from_numpy(value) for key, value in arrays.items()}, tmp_path / "a.safetensors")
    other = read_share(tmp_path / "a.safetensors", "binary", 1, ())
    assert torch.equal(other.train.x, share.train.x) and torch.equal(other.tests["later"].y, share.tests["later"].y)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y": None}, "has no array y"),
        ({"y": numpy.arange(30)}, "y must be 0 or 1"),
        ({"x": numpy.zeros(30)}, "must be \\[samples, ...\\]"),
        ({"x": numpy.full((30, 6), numpy.nan)}, "must be finite"),
        ({"context": numpy.full(30, -1)}, "counted from 0"),
        ({"test/later/x": numpy.zeros((9, 5))}, "another shape"),
    ],
)
def test_a_file_that_will_not_do(change: dict[str, object], says: str, tmp_path: Path) -> None:
    arrays = {"x": numpy.zeros((30, 6)), "y": numpy.zeros(30), "test/later/x": numpy.zeros((9, 6)),
              "test/later/y": numpy.zeros(9)} | change  # fmt: skip
    numpy.savez(tmp_path / "a.npz", **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(UserError, match=says):
        read_share(tmp_path / "a.npz", "binary", 1, ())
    for name, content in (("b.npz", b"not arrays"), ("b.safetensors", b"nor these"), ("b.csv", b"x,y")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            read_share(tmp_path / name, "binary", 1, ())
    with pytest.raises(UserError, match="does not exist"):
        read_share(tmp_path / "none.npz", "binary", 1, ())


def test_sites_with_their_own_files_train_together(tmp_path: Path) -> None:
    """Data that no experiment file describes: each site has its own, of its own size and contexts."""
    rng = numpy.random.default_rng(1)
    post = InProcess(tmp_path, 3)
    for client in range(3):
        x = rng.normal(size=(20 + client, 4))
        arrays = {"x": x, "y": x[:, 0] > 0, "context": numpy.arange(len(x)) % (1 + client)}
        arrays |= {"test/later/x": x[:9], "test/later/y": x[:9, 0] > 0}
        numpy.savez(tmp_path / f"{client}.npz", **arrays)
        post.contexts[client].node_config["data"] = str(tmp_path / f"{client}.npz")
    table = {
        "data": {"benchmark": "sites", "clients": 3},
        "model": {"hidden": [5]},
        "training": {"rounds": 3, "batch_size": 8},
        "algorithm": {"name": "perinvfl", "learning_rate": 0.05, "personal_learning_rate": 0.05},
    }
    trial = build_experiment(table).trials[0]
    rounds = deploy(trial, tmp_path, post=post)
    assert rounds.begun.contexts == 3 and rounds.begun.tests == ("later",) and rounds.done == 3
    with pytest.raises(UserError, match="federation run"):
        trial.federation()
    del post.contexts[1].node_config["data"]
    with pytest.raises(UserError, match=r"site-1 could not answer.*without --data"):
        deploy(trial, tmp_path / "again", post=post)


def test_arrays_hold_out_contexts_as_on_one_machine(tmp_path: Path) -> None:
    x = numpy.random.default_rng(0).normal(size=(60, 3))
    path = tmp_path / "own.npz"
    numpy.savez(path, x=x, y=x[:, 0] > 0, context=2019 + numpy.arange(60) % 3)
    settings: dict[str, Any] = {"benchmark": "sites"}

    def share(**more: Any) -> SiteData:
        return load_share(path, json.dumps([{"data": settings | more, "seed": 0}, 0, 1, 2]))

    own = share(test_contexts=[2021])
    assert own.contexts == 2 and len(own.tests["2021"].y) == 20
    with pytest.raises(UserError, match="counted from 0"):
        share()


def test_what_is_wrong_with_a_row_is_told_to_the_site_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    post = InProcess(tmp_path, 2)
    for client, cell in enumerate(("1.5", "Jane Doe")):
        path = tmp_path / f"{client}.csv"
        path.write_text("x,label,context\n" + "1,0,a\n2,1,b\n" * 9 + f"{cell},1,b\n")
        post.contexts[client].node_config["data"] = str(path)
    table = {
        "data": {"benchmark": "sites", "clients": 2},
        "training": {"rounds": 1},
        "algorithm": {"name": "fedavg"},
    }
    with pytest.raises(UserError, match="site-1 could not answer: its data cannot be used") as refused:
        deploy(build_experiment(table).trials[0], tmp_path, post=post)
    assert "Doe" not in str(refused.value)
    assert 'line 20, column "x": "Jane Doe" is not a number' in capsys.readouterr().err
