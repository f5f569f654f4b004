"""A federation of real processes on this machine's loopback, with TLS and authentication.

The server and the first site are fresh processes, as a user would start them; the others begin with what they import
already there (`tests/warm.py`).
"""

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.commands import ROOT, command, environment, free_port, perinvfl, until
from tests.warm import Started, Warm

SITES = ("a", "b", "c", "d")
ODD = "d"
OWN = "new_algorithm:FadingProx"  # the only code beside the package that sites allow
FRESH = ("up", "a")  # when they start for the first time
HERE = Path(__file__).parent
IMPORTED = (
    "runs.experiment",
    "cli",
    *(f"flower.{name}" for name in ("client_app", "server_process", "server_run", "site_process")),
)

EXPERIMENT = """
name = "{name}"
seeds = [{seed}]
{more}
[data]
{data}
[model]
{model}
[training]
rounds = {rounds}
batch_size = 8
evaluate_every = 100
executor = "loop"
[federation]
poll = 0.05
{settings}
{algorithms}
"""
RANDOM = "benchmark = 'random'\nclients = 4\nsamples = 20\n"
PERINVFL = """
[[algorithm]]
name = "perinvfl"
local_steps = 2
learning_rate = 0.05
personal_learning_rate = 0.05
beta = [0.1, 0.2, 0.3, 0.4]
warmup_rounds = 2
"""


class Processes:
    def __init__(self, root: Path) -> None:
        self.root, self.folder, self.port = root, root / "fed", free_port()
        self.behaviour, self.sent, self.watched = root / "behaviour.json", root / "sent", root / "watched.log"
        self.running: dict[str, subprocess.Popen[bytes] | Started] = {}
        self.warm = Warm(root, self.environment(), *(f"perinvfl.{name}" for name in IMPORTED))
        self.started: set[str] = set()
        self.behave()
        done = perinvfl(
            "federation", "init", self.folder, "--sites", ",".join(SITES), "--host", "localhost", "--host", "127.0.0.1",
            "--port", self.port,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.printed_by_init = done.stdout

    def behave(self, **how: object) -> None:
        """What the odd site does from its next message on."""
        self.behaviour.with_name("hanging").unlink(missing_ok=True)
        new = self.behaviour.with_suffix(".new")
        new.write_text(json.dumps(how))
        new.replace(self.behaviour)

    def start(self, name: str) -> None:
        again, log = name in self.started, self.root / f"{name}.log"
        self.started.add(name)
        if name == "up":
            (self.folder / "server" / "control.key").unlink(missing_ok=True)
        line = self.line(name)
        if again or name not in FRESH:
            self.running[name] = self.warm.start(log, *line)
        else:
            with open(log, "ab") as file:
                self.running[name] = subprocess.Popen(command(*line), stdout=file, stderr=file, env=self.environment())

    def line(self, name: str) -> tuple[object, ...]:
        """The command that a process is started with."""
        if name == "up":
            return ("federation", "up", self.folder, "--bind", "127.0.0.1")
        if name == ODD:
            return (HERE / "odd_site.py", self.site(name), self.behaviour, self.sent)
        return ("federation", "join", self.site(name), "--poll", "0.15", "--code", ROOT / "examples", "--allow", OWN)

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(HERE / "watched"), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # as the simulator in these tests
        return {**environment(), **one_thread, "PYTHONPATH": path, "WATCHED_LOG": str(self.watched)}

    def whole(self) -> None:
        """Everybody runs, and the odd site is as the others."""
        self.behave()
        for name in ("up", *SITES):
            process = self.running.get(name)
            if process is None or process.poll() is not None:
                self.start(name)
        until((self.folder / "server" / "control.key").exists, "the server runs", self.running["up"])

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        process = self.running.pop(name)
        process.send_signal(number)
        process.wait(20)

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait(20)
        self.running.clear()

    def site(self, name: str) -> Path:
        return self.folder / f"site-{name}"

    def log(self, name: str) -> str:
        path = self.root / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def experiment(
        self,
        name: str,
        rounds: int,
        settings: str = "",
        algorithms: str = PERINVFL,
        data: str = RANDOM,
        model: str = "hidden = [5]",
        more: str = "",
    ) -> Path:
        file = self.root / f"{name}.toml"
        given = {"settings": settings, "algorithms": algorithms, "data": data, "model": model, "more": more}
        file.write_text(EXPERIMENT.format(name=name, rounds=rounds, seed=0, **given))
        return file

    def begin(self, file: Path, *more: str) -> Started:
        """A run in a process of its own."""
        return self.warm.start(self.root / "runs.log", "federation", "run", self.folder, file, *more)

    def run(self, file: Path, *more: str) -> str:
        """A run to its end."""
        process = self.begin(file, *more)
        printed, _ = process.communicate(timeout=300)
        logs = "\n".join(self.log(name)[-2000:] for name in ("up", *SITES))
        assert process.returncode == 0, printed + logs
        return printed

    def command(self, *arguments: object) -> tuple[int, str]:
        """How another command of `perinvfl federation` ends, and what it prints."""
        process = self.warm.start(self.root / "commands.log", "federation", *arguments)
        printed, _ = process.communicate(timeout=60)
        return process.wait(), printed

    def records(self, file: Path) -> list[Path]:
        return sorted((self.folder / "server" / "runs" / file.stem).iterdir())
