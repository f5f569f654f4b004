"""Where the power fails, a run resumes to the same bits or says in a sentence what is lost: never fewer results."""

import math
import random
from pathlib import Path

import pytest
import torch

from perinvfl.core import checkpoint
from perinvfl.errors import UserError
from perinvfl.results.render import as_json
from perinvfl.results.table import make_table
from perinvfl.runs import group
from perinvfl.runs.experiment import Experiment, read_experiment
from perinvfl.runs.group import forget_prepared
from perinvfl.runs.progress import Exchange, Progress
from perinvfl.runs.records import EVENTS, PREDICTIONS, TOGETHER, find_runs
from perinvfl.runs.train import train
from perinvfl.runs.trial import Trial
from tests.commands import TINY, tiny_file, untimed
from tests.power import Disk

SECOND = '\n[[algorithm]]\nname = "fedavg"\nlearning_rate = 0.05\n'
ALIKE = TINY[TINY.index("[[algorithm]]") :].replace("0.05", "0.01") + 'label = "Slow"\n'
PREPARED = '\n[contexts]\ninfer = "hard"\nreference_rounds = 3\nreference_rate = 0.02\n'
CASES = {  # what is trained, how many trials run as one program
    "two methods": ("evaluate_every = 2", SECOND, 1),
    "prepared": ("evaluate_every = 3", PREPARED, 1),
    "one program": ("evaluate_every = 2", ALIKE, 8),
}
CRASHES = 6  # in a row
SEQUENCES = 10


class Sparse(Progress):
    """A checkpoint after every third round, so that lines are written that none counts on."""

    def round(
        self, trials: list[Trial], rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None:
        group.CHECKPOINT_SHARE = math.inf if rounds_done % 3 else 0.0

    def preparing(self, trials: list[Trial], phase: str, round: int, rounds: int) -> None:
        group.CHECKPOINT_SHARE = 0.0


@pytest.mark.parametrize("case", CASES)
def test_power_fails_again_and_again(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, more, together = CASES[case]
    experiment = read_experiment(tiny_file(tmp_path, 7, training, more))
    monkeypatch.setattr(group, "CHECKPOINT_SHARE", 0.0)
    whole = tmp_path / "whole"
    train(experiment, whole, Sparse(), together)
    assert (whole / TOGETHER).exists() == (together > 1)
    expected = as_json(make_table(find_runs(whole)))
    resumed, refused = 0, 0
    for seed in range(SEQUENCES):
        rng = random.Random(f"{case} {seed}")
        root = tmp_path / str(seed) / "0"
        root.mkdir(parents=True)
        for crash in range(CRASHES):
            disk = Disk(root)
            forget_prepared()
            try:
                with disk.watched():
                    train(experiment, root / "runs", Sparse(), together)
            except UserError as error:
                refused += 1
                assert str(root) in str(error) and "delete" in str(error), error
                break
            resumed += 1
            assert_same(root / "runs", whole, f"{case}, seed {seed}, crash {crash}")
            if not disk.operations:
                break  # nothing was left to do
            after = root.with_name(str(crash + 1))
            after.mkdir()
            disk.after(rng.randint(0, len(disk.operations)), after, rng, lambda path: True)
            root = after
            look(root / "runs", experiment, expected)
    assert resumed > 5 * SEQUENCES and refused == 0, (resumed, refused)


def look(folder: Path, experiment: Experiment, expected: object) -> None:
    """A table made right after the power failed: all runs that ended, with their numbers, or a sentence."""
    try:
        runs = find_runs(folder) if folder.is_dir() else []
    except UserError as error:
        assert str(folder) in str(error)
        return
    if len(runs) == len(experiment.trials) and all(run.finished for run in runs):
        assert as_json(make_table(runs)) == expected


def assert_same(ours: Path, theirs: Path, what: str) -> None:
    for record in theirs.rglob(EVENTS):
        own = ours / record.relative_to(theirs)
        assert untimed(own) == untimed(record), what
        assert own.with_name(PREDICTIONS).read_bytes() == record.with_name(PREDICTIONS).read_bytes()
        if record.with_name("checkpoint.pt").exists():
            left, right = (checkpoint.load(path.with_name("checkpoint.pt")) for path in (own, record))
            assert left.keys() == right.keys()
            assert all(torch.equal(left[key], right[key]) for key in left.keys() - {"seconds"}), what
    assert not list(ours.rglob(".*.tmp")), what


def test_power_fails_at_every_write_of_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each point once: what random points meet in one of fifty cases."""
    training, more, together = CASES["one program"]
    experiment = read_experiment(tiny_file(tmp_path, 7, training, more))
    monkeypatch.setattr(group, "CHECKPOINT_SHARE", 0.0)
    root = tmp_path / "whole"
    root.mkdir()
    disk = Disk(root)
    forget_prepared()
    with disk.watched():
        train(experiment, root / "runs", Sparse(), together)
    assert len(disk.operations) > 60
    for point in range(len(disk.operations) + 1):
        after = tmp_path / str(point)
        after.mkdir()
        disk.after(point, after, random.Random(f"{point} 0"), lambda path: True)
        forget_prepared()
        monkeypatch.setattr(group, "CHECKPOINT_SHARE", 0.0)
        train(experiment, after / "runs", Sparse(), together)
        assert_same(after / "runs", root / "runs", f"point {point}")
