"""Killed at any moment and started again, a run ends with the same bits as one never interrupted."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from commands import command, environment, perinvfl, tiny_file

from perinvfl import checkpoint

ROUNDS = 1500
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
    files = sorted(path.parent.glob("at_rest/*.rows"))
    if files:
        latest = ("clients", "places", "settled")
        saved = {key: value for key, value in saved.items() if not key.startswith(latest)}
        saved |= {file.name: torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8) for file in files}
    return saved


def untimed(folder: Path) -> list[dict[str, object]]:
    (path,) = folder.rglob("events.jsonl")
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in event.items() if key not in ("seconds", "began")} for event in kept]


@pytest.mark.parametrize("name", CASES)
def test_killed_again_and_again(name: str, tmp_path: Path) -> None:
    file = tiny_file(tmp_path, rounds=ROUNDS, training=CASES[name])
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert perinvfl("run", file, "--out", whole).returncode == 0
    rng = random.Random(name)
    kills, went_on = 0, 0
    while kills < 4:
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
    assert went_on or "going on after round" in done.stdout or "already done" in done.stdout
    left, right = final_state(whole), final_state(broken)
    assert left.keys() == right.keys()
    assert any(key.startswith("clients") or key.endswith(".rows") for key in left)
    for key in left:
        assert torch.equal(left[key], right[key]), key
    assert untimed(whole) == untimed(broken)
