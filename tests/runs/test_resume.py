"""Killed at any moment and started again, a run ends with the same bits as one never interrupted."""

import dataclasses
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from commands import command, environment, perinvfl, tiny_file, untimed

from perinvfl.core import checkpoint
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.records import read_run
from perinvfl.runs.train import Plain, Watch, train
from perinvfl.runs.trial import Trial

ROUNDS = 1000
EVERY = "batch_size = 8\nevaluate_every = 50\n"
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
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert perinvfl("run", file, "--out", whole).returncode == 0
    rng = random.Random(name)
    kills, went_on = 0, 0
    while kills < 3:
        process = subprocess.Popen(
            command("run", file, "--out", broken), stdout=subprocess.PIPE, text=True, env=environment()
        )
        while not list(broken.rglob("checkpoint.pt")) and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.4) if kills == 0 else rng.uniform(1.5, 2.5))
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        went_on += "going on after round" in printed
        kills += 1
    assert kills >= 2, "the run was too short to be killed"
    done = perinvfl("run", file, "--out", broken)
    assert done.returncode == 0, done.stderr
    assert went_on or "going on after round" in done.stdout
    left, right = final_state(whole), final_state(broken)
    assert left.keys() == right.keys()
    assert any(key.startswith("clients") or key.endswith(".rows") for key in left)
    for key in left.keys() - {"seconds"}:
        assert torch.equal(left[key], right[key]), key
    left_events, right_events = (next(folder.rglob("events.jsonl")) for folder in (whole, broken))
    assert untimed(left_events) == untimed(right_events)


@pytest.mark.parametrize("at_rest", ["memory", "disk"])
def test_a_group_of_trials_goes_on_whole(at_rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed with one trial broken and another search begun in the same folder, a group ends as if never killed."""
    monkeypatch.setattr("perinvfl.runs.train.CHECKPOINT_SHARE", 0.0)  # a checkpoint after every round
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
    train(group, whole, Watch(), most_together=8)

    class Stop(Watch):
        def round(self, trials: list[Trial], rounds_done: int, risk: float | None) -> None:
            if rounds_done == 9:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(group, broken, Stop(), most_together=8)
    other = dataclasses.replace(experiment, trials=tuple(dataclasses.replace(t, seed=5) for t in trials[:2]))
    train(other, broken, Watch(), most_together=8)
    said: list[str] = []
    train(group, broken, Plain(said.append), most_together=8)
    assert any("going on after round" in line for line in said)
    for trial in trials:
        runs = [read_run(folder / trial.folder) for folder in (whole, broken)]
        assert all(run is not None and run.finished for run in runs)
        assert untimed(whole / trial.folder / "events.jsonl") == untimed(broken / trial.folder / "events.jsonl")
    assert not list((broken / ".together").glob("*.pt"))


def test_two_processes_never_work_on_one_run(tmp_path: Path) -> None:
    file = tiny_file(tmp_path, rounds=100_000)
    first = subprocess.Popen(
        command("run", file, "--out", tmp_path / "runs"), stdout=subprocess.PIPE, env=environment()
    )
    try:
        while not list((tmp_path / "runs").rglob("checkpoint.pt")):
            time.sleep(0.05)
            assert first.poll() is None
        second = perinvfl("run", file, "--out", tmp_path / "runs")
        assert second.returncode == 2 and "Another process is at work" in second.stderr
    finally:
        first.kill()
        first.communicate()
