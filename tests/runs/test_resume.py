"""Killed at any moment and started again, a run ends with the same bits as one never interrupted."""

import dataclasses
from pathlib import Path

import pytest
import torch

from perinvfl.cli import call
from perinvfl.core import checkpoint
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.progress import Lines, Progress
from perinvfl.runs.records import read_run
from perinvfl.runs.train import train
from tests.commands import child, start, tiny_file, until, untimed
from tests.stops import StopAt

ROUNDS = 60
EVERY = "batch_size = 8\nevaluate_every = 10\n"
CASES = {
    "loop, all clients": EVERY + 'executor = "loop"',
    "vmap, all clients": EVERY + 'executor = "vmap"',
    "loop, some clients, at rest on disk": EVERY + 'executor = "loop"\nfraction = 0.67\nat_rest = "disk"',
}


def final_state(folder: Path) -> dict[str, torch.Tensor]:
    """Everything a run ended with. Of states at rest on disk the files hold all, the checkpoint only the latest."""
    (path,) = folder.rglob("checkpoint.pt")
    saved = checkpoint.load(path)
    rows = sorted(path.parent.glob("at_rest/*.rows"))
    if rows:
        latest = ("clients", "places", "settled")
        saved = {key: value for key, value in saved.items() if not key.startswith(latest)}
        saved |= {file.name: torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8) for file in rows}
    return saved


@pytest.mark.parametrize("name", CASES)
def test_killed_again_and_again(name: str, tmp_path: Path) -> None:
    file = tiny_file(tmp_path, rounds=ROUNDS, training=CASES[name])
    done = child(Path(__file__).parent / "killed_run.py", file, tmp_path, name)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) >= 5, "the run was killed"
    assert done.stdout.count("resumes after round") >= 5, "and resumed from a checkpoint"
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    left, right = final_state(whole), final_state(broken)
    assert left.keys() == right.keys()
    assert any(key.startswith("clients") or key.endswith(".rows") for key in left)
    for key in left.keys() - {"seconds"}:
        assert torch.equal(left[key], right[key]), key
    left_events, right_events = (next(folder.rglob("events.jsonl")) for folder in (whole, broken))
    assert untimed(left_events) == untimed(right_events)


def test_killed_in_a_write_and_again_while_it_resumes(tmp_path: Path) -> None:
    done = child(Path(__file__).parents[1] / "killed_twice.py", "simulator", tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) >= 20


@pytest.mark.parametrize("at_rest", ["memory", "disk"])
def test_a_group_of_trials_goes_on_whole(at_rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed with one trial broken and another search begun in the same folder, a group ends as if never killed."""
    monkeypatch.setattr("perinvfl.runs.group.CHECKPOINT_SHARE", 0.0)  # a checkpoint after every round
    training = f'batch_size = 8\nfraction = 0.67\nevaluate_every = 2\nat_rest = "{at_rest}"\nexecutor = "loop"'
    file = tiny_file(tmp_path, rounds=12, training=training)
    rates = [0.05, 0.02, 1e30]
    experiment = read_experiment(file)
    trials = tuple(
        dataclasses.replace(
            experiment.trials[0],
            label=f"T{number}",
            algorithm=dataclasses.replace(experiment.trials[0].algorithm, learning_rate=rate),
        )
        for number, rate in enumerate(rates)
    )
    group = dataclasses.replace(experiment, trials=trials)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(group, whole, Progress(), most_together=8)

    with pytest.raises(KeyboardInterrupt):
        train(group, broken, StopAt(9), most_together=8)
    other = dataclasses.replace(experiment, trials=tuple(dataclasses.replace(t, seed=5) for t in trials[:2]))
    train(other, broken, Progress(), most_together=8)
    said: list[str] = []
    train(group, broken, Lines(said.append), most_together=8)
    assert any("resumes after round" in line for line in said)
    for trial in trials:
        runs = [read_run(folder / trial.folder) for folder in (whole, broken)]
        assert all(run is not None and run.finished for run in runs)
        assert untimed(whole / trial.folder / "events.jsonl") == untimed(broken / trial.folder / "events.jsonl")
    assert not list((broken / ".together").glob("*.pt"))


def test_two_processes_never_work_on_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tiny_file(tmp_path, rounds=100_000)
    first = start("run", file, "--out", tmp_path / "runs")
    try:
        until(lambda: list((tmp_path / "runs").rglob("checkpoint.pt")), "the first checkpoint", first)
        second = call(["run", str(file), "--out", str(tmp_path / "runs")])
        assert second == 2 and "Another process is at work" in capsys.readouterr().err
    finally:
        first.kill()
        first.communicate()
