"""`python -m tests.soak --seconds 7200`: runs with random faults for as long as it is told, and what they use up.

A server and four sites on loopback train one kind of run after another, each at least once (plain, secure aggregation,
differential privacy, inferred contexts, some sites per round). Runs and sites are killed and paused on the way; in the
first quarter the server too. Beside it a process of the simulator stops and resumes runs, and others are killed. Every
run must end with the bits of one that was not disturbed. Between runs memory, descriptors, threads and disk of what
lives long are measured. It ends with code 1 and one sentence if anything grew beyond the records.
"""

import argparse
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.commands import TINY
from tests.soak.deployment import KINDS, Deployment, Wrong
from tests.soak.growth import Growth, measure, shown
from tests.soak.traces import trace_of_simulation
from tests.warm import Started

SIMULATOR = Path(__file__).parent / "simulator.py"
SERVER_KILLED = 0.25  # share of the time; from then on the server is measured
SAID_EVERY = 60.0  # seconds


@dataclass
class Simulations:
    """Runs on one machine: a process that lasts, and others that are killed."""

    deployment: Deployment
    file: Path
    rng: random.Random
    expected: str = ""
    runs: int = 0
    kills: int = 0
    lasting: Started | None = None

    def begin(self, seed: str) -> None:
        root = self.deployment.root
        self.lasting = self.deployment.warm.start(root / "lasting.log", SIMULATOR, self.file, root / "lasting", seed)
        self.expected = self.once("whole", kills=0)

    def end(self) -> None:
        if self.lasting is not None:
            self.lasting.kill()
            self.lasting.wait(20)

    def once(self, name: str, kills: int) -> str:
        out = self.deployment.root / name
        line = ("run", self.file, "--out", out)
        for _ in range(kills):
            run = self.deployment.warm.start(out.with_suffix(".log"), *line)
            time.sleep(self.rng.uniform(0.1, 1.5))
            self.kills += run.poll() is None
            run.kill()
            run.wait(20)
        run = self.deployment.warm.start(out.with_suffix(".log"), *line)
        printed, _ = run.communicate(timeout=300)
        if run.returncode:
            raise Wrong(f"A simulated run ended with code {run.returncode}: {printed[-2000:]}")
        found = trace_of_simulation(out)
        shutil.rmtree(out)
        out.with_suffix(".log").unlink()
        self.runs += 1
        return found

    def disturbed(self) -> None:
        if self.once("killed", kills=self.rng.randint(1, 3)) != self.expected:
            raise Wrong("A simulated run that was killed ended with other bits than one that was not.")
        if self.lasting is not None and self.lasting.poll() is not None:
            raise Wrong(f"The process of the simulator has ended: {self.said()[-1]}")

    def measured(self) -> dict[str, float]:
        return {} if self.lasting is None else measure(self.lasting.pid)

    def said(self) -> list[str]:
        return (self.deployment.root / "lasting.log").read_text().splitlines() or [""]


def soak(root: Path, seconds: float, seed: str, kinds: Sequence[str] = tuple(KINDS)) -> list[str]:
    """kinds: of runs across processes. What grew, in one sentence each; Wrong if a run did not end as it should."""
    rng, growth = random.Random(seed), Growth()
    os.environ |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(root / "tmp")}
    (root / "tmp").mkdir()
    file = root / "simulated.toml"
    file.write_text(TINY.format(rounds=40, training="batch_size = 8\nevaluate_every = 10\nexecutor = 'loop'"))
    deployment = Deployment(root, rng, growth)
    simulations = Simulations(deployment, file, rng)
    try:
        deployment.whole()
        deployment.undisturbed(kinds)
        simulations.begin(seed)
        began = said = time.monotonic()
        while (passed := time.monotonic() - began) < seconds or deployment.counts.runs < len(kinds):
            kind = kinds[deployment.counts.runs % len(kinds)]
            deployment.disturbed(kind, server_too=passed < SERVER_KILLED * seconds)
            simulations.disturbed()
            deployment.measure()
            growth.note("the simulator", simulations.measured())
            if time.monotonic() - said >= SAID_EVERY:
                said = time.monotonic()
                print(f"{said - began:.0f} s: {state(deployment, simulations)}", flush=True)
        print(f"{time.monotonic() - began:.0f} s: {state(deployment, simulations)}")
        print("\n".join(growth.table()), flush=True)
        return growth.complaints()
    finally:
        simulations.end()
        deployment.close()
        deployment.warm.close()


def state(deployment: Deployment, simulations: Simulations) -> str:
    faults = ", ".join(f"{name} {count}" for name, count in sorted(deployment.counts.faults.items()))
    stopped, memory = simulations.said().count("same"), measure(deployment.running["up"].pid).get("memory", 0.0)
    return (
        f"{deployment.counts.runs} deployed runs ({faults}); {simulations.runs} simulated ones with "
        f"{simulations.kills} kills, and {stopped} that were stopped three times; "
        f"the server has {shown('memory', memory)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=7200.0, help="for how long")
    parser.add_argument("--seed", default="", help="a seed of an earlier run; by default a fresh one")
    given = parser.parse_args()
    seed = given.seed or secrets.token_hex(4)
    print(f"seed {seed}", flush=True)
    root = Path(tempfile.mkdtemp(prefix="soak"))
    try:
        grew = soak(root, given.seconds, seed)
    except Wrong as wrong:
        grew = [str(wrong), f"What the processes wrote is kept in {root}."]
    else:
        shutil.rmtree(root)
    for sentence in grew:
        print(f"error: {sentence}", file=sys.stderr)
    return 1 if grew else 0


if __name__ == "__main__":
    sys.exit(main())
