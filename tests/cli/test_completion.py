"""Completion in a shell: the script is emitted, and a real bash completes with it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import environment

BASH = shutil.which("bash")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """`perinvfl` as it would be installed."""
    made = tmp_path / "perinvfl"
    made.write_text(f'#!/bin/sh\nexec {sys.executable} -m perinvfl "$@"\n')
    made.chmod(0o755)
    return made


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["re"], ["report"]),
        (["data", "ch"], ["check"]),
        (["list", "ditto"], ["ditto", "ditto-rc_fmnist", "ditto-rc_mnist"]),
        (["run", "--preset", "vrex"], []),
        (["run", "--preset", "pfedme"], ["pfedme-rc_fmnist", "pfedme-rc_mnist"]),
        (["report", "--dia"], ["--diagnose"]),
    ],
)
def test_bash_completes(program: Path, words: list[str], found: list[str]) -> None:
    line = ["perinvfl", *words]
    script = (
        'eval "$(perinvfl --show-completion; true)"\n'  # the shell is found out by looking at who calls
        f"COMP_WORDS=({' '.join(line)}); COMP_CWORD={len(words)}\n"
        '_perinvfl_completion perinvfl\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(BASH), "-c", script], capture_output=True, text=True, env={**environment(), "PATH": path}
    )
    assert done.stderr == "" and done.stdout.split() == found
