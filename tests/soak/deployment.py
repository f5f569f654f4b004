"""Runs of a real deployment, a server and four sites on loopback, that random faults disturb."""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from perinvfl.flower import privacy
from perinvfl.runs.records import read_run
from tests.commands import environment, until
from tests.flower.processes import RANDOM, SITES, Processes
from tests.soak.growth import Growth, measure, measure_files
from tests.soak.traces import differing, trace_of_deployment
from tests.warm import Started

ROUNDS = 6
LASTING = "a"  # the site that is never killed
EVERYBODY = "minimum_replies = 4\n"  # so that faults change no number
PATIENT = "round_timeout = 4\npatience = 120\nserver_patience = 60\nlast_patience = 60\n"
CONTEXTS = "[contexts]\ninfer = 'hard'\nevery = 2\nreference_rounds = 2\nreference_rate = 0.02\n"
DIGITS = "benchmark = 'rc_mnist'\ntrain_per_client = 40\nholdout = 8\ntest_per_client = 8\n"
NOISE = 2.0
KINDS: dict[str, dict[str, str]] = {
    "plain": {"settings": EVERYBODY},
    "secret": {"settings": f"{EVERYBODY}secure_aggregation = true\n"},
    "private": {"settings": f"{EVERYBODY}noise_multiplier = {NOISE}\n"},
    "inferred": {"settings": EVERYBODY, "data": DIGITS, "more": CONTEXTS},
    "some": {"settings": "minimum_replies = 2\n"},
}
FAULTS = ("kill the run", "kill a site", "pause a site", "kill two sites", "pause the server")


class Wrong(Exception):
    """What may not be, in one sentence."""


@dataclass
class Counts:
    runs: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    def fault(self, name: str) -> None:
        self.faults[name] = self.faults.get(name, 0) + 1


class Deployment(Processes):
    """Every site as a user has it."""

    def __init__(self, root: Path, rng: random.Random, growth: Growth) -> None:
        super().__init__(root)
        self.rng, self.growth, self.counts = rng, growth, Counts()
        self.expected: dict[str, str] = {}
        self.files = {kind: self._file(kind) for kind in KINDS}

    def environment(self) -> dict[str, str]:
        return environment()

    def line(self, name: str) -> tuple[object, ...]:
        return ("federation", "join", self.site(name), "--poll", "0.15") if name in SITES else super().line(name)

    def _file(self, kind: str) -> Path:
        file = self.experiment(kind, ROUNDS, **{"data": RANDOM, **KINDS[kind]})
        text = file.read_text().replace("[federation]", f"[federation]\n{PATIENT}")
        if kind == "some":
            text = text.replace("[training]", "[training]\nfraction = 0.5")
        file.write_text(text)
        return file

    # One run -------------------------------------------------------------------------------------------------------

    def undisturbed(self, kinds: Iterable[str]) -> None:
        """What each kind of run ends with when nothing happens."""
        for kind in kinds:
            out = self.root / "out" / kind
            self.finish(kind, self.begin(self.files[kind], "--out", str(out)), out)
            self.expected[kind] = self.trace(kind, out)
            shutil.rmtree(out)

    def disturbed(self, kind: str, server_too: bool) -> None:
        """The same with some faults on the way; server_too: it may be killed as well."""
        out = self.root / "out" / kind
        run = self.begin(self.files[kind], "--out", str(out))
        for _ in range(self.rng.randint(1, 4)):
            time.sleep(self.rng.uniform(0.1, 1.5))
            if run.poll() is None:
                run = self.disturb(kind, run, out, self.rng.choice([*FAULTS, *(["kill the server"] * server_too)]))
        self.finish(kind, run, out)
        found, expected = self.trace(kind, out), self.expected[kind]
        if found != expected:
            what = differing(found, expected)
            raise Wrong(f"A run ({kind}) ended with other bits than when it was not disturbed ({what}): {out}.")
        shutil.rmtree(out)
        self.counts.runs += 1

    def disturb(self, kind: str, run: Started, out: Path, fault: str) -> Started:
        self.counts.fault(fault)
        if fault in ("kill the run", "kill the server"):
            run.kill()
            run.wait(20)
            if fault == "kill the server":
                self.restart("up")
            return self.begin(self.files[kind], "--out", str(out), "--resume")
        if fault.startswith("kill"):
            for name in self.rng.sample([site for site in SITES if site != LASTING], 2 if "two" in fault else 1):
                self.restart(name)
        else:
            process = self.running["up" if "server" in fault else self.rng.choice(SITES)]
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(self.rng.uniform(0.2, 3.0))
            os.kill(process.pid, signal.SIGCONT)
        return run

    def restart(self, name: str) -> None:
        self.kill(name)
        self.growth.forget("the server" if name == "up" else f"site {name}")
        self.start(name)
        if name == "up":
            until((self.folder / "server" / "control.key").exists, "the server runs again", self.running["up"])

    def finish(self, kind: str, run: Started, out: Path, tries: int = 5) -> None:
        """To its end; where a fault ended it with a sentence, by the command that the sentence names."""
        for _ in range(tries):
            printed, _ = run.communicate(timeout=300)
            if run.returncode == 0:
                return
            if "Traceback" in printed or run.returncode != 2:
                raise Wrong(f"A run ({kind}) ended with code {run.returncode}: {printed[-2000:]}")
            run = self.begin(self.files[kind], "--out", str(out), "--resume")
        raise Wrong(f"A run ({kind}) did not end after {tries} attempts: {printed[-2000:]}")

    def trace(self, kind: str, out: Path) -> str:
        """What is the same for every run of this kind; noise is a site's own, so of a private run it is the budget."""
        (folder,) = (path for path in (out / kind).iterdir() if path.is_dir())
        left = [path for path in (*folder.iterdir(), *self._site_files()) if path.suffix in (".new", ".tmp")]
        if left:
            raise Wrong(f"A finished run left {left[0]} behind.")
        if kind != "private":
            return trace_of_deployment(folder, [self.site(site) for site in SITES])
        run = read_run(folder)
        assert run is not None
        spent = run.events[-1]["privacy"]
        if spent["uploads"] < ROUNDS or spent["epsilon"] < round(privacy.spent(NOISE, spent["uploads"], 1e-5), 6):
            raise Wrong(f"A private run says that it spent less than it did: {spent}.")
        return "spent"

    # What is measured ------------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """Between two runs."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise Wrong(f"{name} has ended: {self.log(name)[-500:]}")
            self.growth.note("the server" if name == "up" else f"site {name}", measure(process.pid))
        beside = (path for path in self.folder.rglob("*") if "state" not in path.parts)
        self.growth.note("beside the records", measure_files([*beside, *(self.root / "tmp").rglob("*")]))

    def _site_files(self) -> list[Path]:
        return [path for site in SITES for path in (self.site(site) / "state").rglob("*")]
