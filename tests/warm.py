"""Processes that begin with everything imported: importing torch takes seconds, and hundreds of processes would do it.

`python -m tests.warm serve SOCKET MODULE...` imports the modules once and then makes a copy of itself (a fork) for
each command that is asked for: a process of its own, with its own arguments, folder, variables and output, which can be
killed. `python warm.py call SOCKET ARGUMENT...` is such a command as a shell starts it. What a fresh process does is
tested where that matters: in tests/test_imports.py, in tests/cli and on the first page of the documentation.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent


class Warm:
    """Where processes come from."""

    def __init__(self, folder: Path, variables: dict[str, str], *modules: str) -> None:
        self.address = folder / "warm.socket"
        line = [sys.executable, "-m", "tests.warm", "serve", str(self.address), *modules]
        path = os.pathsep.join([str(ROOT), variables.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**variables, "PYTHONPATH": path},
            start_new_session=True,
        )
        assert self.process.stdout is not None and self.process.stdout.readline() == b"ready\n"

    def start(self, log: Path, *arguments: object) -> "Started":
        """Begin `perinvfl ARGUMENTS`, or a script with its arguments; the log has what it prints."""
        with open(log, "ab") as file:
            place = log.stat().st_size
            connection, pid = ask(self.address, [*map(str, arguments)], (0, file.fileno(), file.fileno()))
        return Started(connection, pid, log, place)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Started:
    """A process, as `subprocess.Popen` has it."""

    def __init__(self, connection: socket.socket, pid: int, log: Path, place: int) -> None:
        self.connection, self.pid, self.log, self.place = connection, pid, log, place
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        assert code is not None, f"process {self.pid} did not end within {timeout} s"
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """What it has printed when it has ended."""
        self.wait(timeout)
        return self.log.read_bytes()[self.place :].decode(), None

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self.connection.settimeout(timeout)
            try:
                self.returncode = int(self.connection.recv(64))
            except (BlockingIOError, TimeoutError):
                return None
            self.connection.close()
        return self.returncode


def ask(address: Path, arguments: list[str], files: tuple[int, int, int]) -> tuple[socket.socket, int]:
    """The connection that will say how the new process ended, and the process's number."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(address))
    asked = {"arguments": arguments, "folder": os.getcwd(), "variables": dict(os.environ)}
    socket.send_fds(connection, [json.dumps(asked).encode()], list(files))
    return connection, int(connection.recv(64))


# In the process that is copied --------------------------------------------------------------------------------------


def serve(address: Path, modules: list[str]) -> None:
    import importlib

    for name in modules:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be copied"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(address))
    listening.listen(32)
    print("ready", flush=True)
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:  # which ends with the tests
        connection, _ = listening.accept()
        if os.fork() == 0:  # one that waits for the end and says so
            listening.close()
            attend(connection)
        connection.close()


def attend(connection: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked, files, _, _ = socket.recv_fds(connection, 2**18, 3)
    pid = os.fork()
    if pid == 0:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        carry_out(**json.loads(asked))
    for file in files:
        os.close(file)
    connection.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def carry_out(arguments: list[str], folder: str, variables: dict[str, str]) -> None:
    import runpy
    import traceback

    code: object = 1
    sys.stdout, sys.stderr = (
        os.fdopen(fd, "w", encoding="utf-8", closefd=False) for fd in (1, 2)
    )  # they are others now
    try:
        os.chdir(folder)
        os.environ.update(variables)
        sys.path[0] = folder
        if arguments[0].endswith(".py"):
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            from perinvfl.cli import main

            sys.argv = ["perinvfl", *arguments]
            main()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(Path(sys.argv[2]), sys.argv[3:])
    else:
        waiting, _ = ask(Path(sys.argv[2]), sys.argv[3:], (0, 1, 2))
        sys.exit(int(waiting.recv(64)))
