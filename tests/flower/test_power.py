"""The power fails at the server, at a site, or everywhere: resumed, a deployment ends in the same bits."""

import random
import shutil
from pathlib import Path

import pytest

from perinvfl.core import tree
from perinvfl.errors import UserError
from perinvfl.flower.client_app import open_site
from perinvfl.flower.rounds import Rounds
from perinvfl.flower.server_run import AGREEMENT
from perinvfl.flower.server_state import SPENT
from perinvfl.flower.settings import DeploymentSettings
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import read_run
from perinvfl.runs.trial import Trial
from tests.flower.deployed import SETTINGS, assert_equal, deploy, plain, site_state, sites, trial_of
from tests.flower.inprocess import InProcess
from tests.flower.test_server_stops import ALIGNED
from tests.power import Disk
from tests.runs.damage import damages

CRASHES, SEQUENCES = 6, 6
TRIALS = {"one phase": lambda: trial_of("perinvfl", rounds=4), "prepared": lambda: build_experiment(ALIGNED).trials[0]}


def go_on(trial: Trial, folder: Path, settings: DeploymentSettings = SETTINGS) -> Rounds:
    open_site.cache_clear()  # only what is on disk is left
    names = sites(trial)
    rounds = Rounds(trial, settings, names, InProcess(folder, len(names)), folder / "runs", Progress())
    rounds.run(resume=True)
    return rounds


@pytest.mark.parametrize("name", TRIALS)
def test_power_fails_at_the_server_and_at_sites(name: str, tmp_path: Path) -> None:
    trial = TRIALS[name]()
    whole = deploy(trial, tmp_path / "whole")
    expected = read_run(whole.folder)
    assert expected is not None
    for seed in range(SEQUENCES):
        rng = random.Random(f"{name} {seed}")
        root = tmp_path / str(seed) / "0"
        root.mkdir(parents=True)
        for crash in range(CRASHES):
            disk = Disk(root)
            with disk.watched():
                rounds = go_on(trial, root)
            found = read_run(rounds.folder)
            assert found is not None and plain(found.events) == plain(expected.events), (seed, crash)
            for client in range(len(sites(trial))):
                ours, theirs = site_state(rounds, root, client), site_state(whole, tmp_path / "whole", client)
                assert_equal(ours, theirs)
            if hasattr(rounds, "server"):  # it was not over already
                assert_equal(tree.named_leaves(rounds.server, ""), tree.named_leaves(whole.server, ""))
            if not disk.operations:
                break
            machine = rng.choice(["runs", "site-0", "site-1", ""])  # whose power fails; "" is everyone's
            after = root.with_name(str(crash + 1))
            after.mkdir()
            at = rng.randint(0, len(disk.operations))
            disk.after(at, after, rng, lambda path, root=root, machine=machine: path.is_relative_to(root / machine))  # type: ignore[misc]
            root = after


def test_files_of_a_server_that_are_damaged_are_refused(tmp_path: Path) -> None:
    """What was agreed on, and what of the privacy was spent, in any way but removed to the byte."""
    trial = trial_of("fedavg", rounds=4)
    settings = DeploymentSettings(patience=5.0, poll=0.01, noise_multiplier=1.0, noise_clip=1.0)

    class Stop(InProcess):
        def ask(self, kind, questions, round, timeout, heard=None):  # type: ignore[no-untyped-def]
            if kind == "train" and round == 2:
                raise KeyboardInterrupt
            return super().ask(kind, questions, round, timeout, heard)

    folder = tmp_path / "stopped"
    rounds = Rounds(trial, settings, sites(trial), Stop(folder, 4), folder / "runs", Progress())
    with pytest.raises(KeyboardInterrupt):
        rounds.run(resume=True)
    assert rounds.books.uploads == [3, 3, 3, 3]
    for name in (AGREEMENT, SPENT, "server.pt"):
        path = rounds.folder / name
        content = path.read_bytes()
        for what, left in damages(content, seed=6, cuts=5, flips=20):
            if left is None and name == "server.pt":
                continue  # a run without a checkpoint begins again
            path.unlink() if left is None else path.write_bytes(left)
            again = Rounds(trial, settings, sites(trial), InProcess(folder, 4), folder / "runs", Progress())
            with pytest.raises(UserError, match="delete") as refusal:
                again.run(resume=True)
            assert str(rounds.folder) in str(refusal.value), what
            path.write_bytes(content)
    shutil.copytree(folder, tmp_path / "copy")
    resumed = go_on(trial, tmp_path / "copy", settings)
    assert resumed.books.uploads == [5, 5, 5, 5], "the round that was asked for twice counts twice"
