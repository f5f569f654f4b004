"""Run the project as a user does: real processes, or the same command lines in this one."""

import contextlib
import importlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from perinvfl.cli import call
from perinvfl.core.stopping import SIGNALS
from perinvfl.runs.records import read_events
from tests.warm import Started

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


def called(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command line in this process: seconds less, where the process itself is not what is tested.

    cwd: a folder to be in; its modules are imported anew, as by a new process.
    """
    out, err = io.StringIO(), io.StringIO()
    for path in () if cwd is None else cwd.rglob("*.py"):
        sys.modules.pop(path.stem, None)
    importlib.invalidate_caches()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(cwd or Path.cwd()):
        with _signals_as_before():
            code = call([*map(str, arguments)])
    return subprocess.CompletedProcess(["perinvfl", *map(str, arguments)], code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _signals_as_before() -> Iterator[None]:
    """A command may say what is to happen on Ctrl-C; when it has ended, that no longer holds."""
    if threading.current_thread() is not threading.main_thread():  # which alone may say so
        yield
        return
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    wakeup = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def child(script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A script of the tests in a process of its own."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    line = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env={**environment(), "PYTHONPATH": path})


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(
    true: Callable[[], object], what: str, process: "subprocess.Popen[Any] | Started | None" = None, seconds: float = 60
) -> None:
    """Wait for something that another process does; not for ever, and not for a process that has ended."""
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, f"not within {seconds:g} s: {what}"
        assert process is None or process.poll() is None, f"the process ended before {what}"
        time.sleep(0.02)


def untimed(events: Path) -> list[dict[str, object]]:
    """The events of a run without the clock."""
    kept = read_events(events)
    return [{key: value for key, value in event.items() if key not in ("seconds", "began")} for event in kept]


def command(*arguments: object, module: str = "perinvfl") -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


def start(*arguments: object, module: str = "perinvfl", **variables: str) -> subprocess.Popen[str]:
    """The command line in a process that is still at work, and that Ctrl-C reaches wherever the tests were started."""
    return subprocess.Popen(
        command(*arguments, module=module),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**environment(), **variables},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background would ignore it
    )  # fmt: skip


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def check_refusal(code: int, out: str, err: str, sentence: str) -> None:
    """A command ended with one sentence and nothing else."""
    assert code == 2, out + err
    assert sentence in err
    assert err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err
