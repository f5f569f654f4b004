"""Processes that work for another one end with it, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT, environment, until


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_parent_leaves_nobody_behind(number: signal.Signals, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.runs.orphans", str(tmp_path)],
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    files = [tmp_path / "1.pid", tmp_path / "2.pid"]
    until(lambda: all(file.exists() and file.read_text() for file in files), "both work", parent)
    children = [int(file.read_text()) for file in files]
    assert all(map(is_alive, children))
    os.kill(parent.pid, number)
    parent.wait(20)
    until(lambda: not any(map(is_alive, children)), "both have ended", seconds=20)
