"""Run the project as a user does: real processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

TINY = """
name = "tiny"
seeds = [0]
[data]
benchmark = "random"
[model]
hidden = [5]
[training]
rounds = {rounds}
{training}
[[algorithm]]
name = "perinvfl"
local_steps = 2
learning_rate = 0.05
personal_learning_rate = 0.05
beta = 0.5
penalty_weight = 10.0
warmup_rounds = 3
"""


def tiny_file(folder: Path, rounds: int = 10, training: str = "evaluate_every = 5", more: str = "") -> Path:
    """An experiment that takes a second."""
    file = folder / "tiny.toml"
    file.write_text(TINY.format(rounds=rounds, training=training) + more)
    return file


def perinvfl(*arguments: object, module: str = "perinvfl", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run(
        command(*arguments, module=module), capture_output=True, text=True, cwd=cwd, env=environment()
    )


def untimed(events: Path) -> list[dict[str, object]]:
    """The events of a run without the clock."""
    kept = [json.loads(line) for line in events.read_text().splitlines()]
    return [{key: value for key, value in event.items() if key not in ("seconds", "began")} for event in kept]


def command(*arguments: object, module: str = "perinvfl") -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


def start(*arguments: object, module: str = "perinvfl") -> subprocess.Popen[str]:
    """The command line in a process that is still at work, and that Ctrl-C reaches wherever the tests were started."""
    return subprocess.Popen(
        command(*arguments, module=module),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background would ignore it
    )  # fmt: skip


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}
