"""More clients than memory: 1 000, 10 000 and 100 000 clients, 100 of them in a round.

Images lie in a mapped file and states at rest on disk, so neither the memory nor the time of a round depends on the
clients that sit out. Rounds of the three are taken in turn, checkpoints included; the peak memory of 100 000 clients is
measured in a process of its own.
"""

import gc
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.common import Row, show
from perinvfl.algorithms import PerInvFL
from perinvfl.core import checkpoint
from perinvfl.core.mapped import let_go, mapped_zeros
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings

TAKING_PART, SAMPLES, ROUNDS = 100, 20, 30
COUNTS = (1_000, 10_000, 100_000)
LIMIT, RATIO = 2.0, 1.2  # GB, and the time of a round over that with the fewest clients


def mapped_digits(clients: int) -> Federation:
    """Random images as bytes, in a file."""
    draw = torch.Generator().manual_seed(0)
    x = mapped_zeros((clients, SAMPLES, 2, 14, 14), torch.uint8)
    for block in x.split(1000):
        block.copy_(torch.randint(256, block.shape, generator=draw, dtype=torch.uint8))
        let_go()
    y = (torch.rand(clients, SAMPLES, generator=draw) < 0.5).float()
    train = Split(x, y, torch.zeros(clients, SAMPLES, dtype=torch.int64))
    test = Split(*(part[:, :4] for part in train))
    return Federation("random digits", "binary", 1, 1, train, {"0.1": test}, ("0.1",))


class Crowd:
    """Clients of whom few take part in a round; a checkpoint after every round."""

    def __init__(self, clients: int, folder: Path) -> None:
        algorithm = PerInvFL(learning_rate=0.01, personal_learning_rate=0.01)
        training = Training(
            batch_size=16, fraction=TAKING_PART / clients, at_rest="disk", device="cpu", evaluate_clients=1000
        )
        # Narrower than the paper's, so that the states of 30 rounds fit on a small disk.
        self.simulation = Simulation(
            [algorithm], [mapped_digits(clients)], [0], training, ModelSettings(hidden=(64, 64)), folder=folder / "rest"
        )
        folder.mkdir(exist_ok=True)
        self.checkpoint = folder / "checkpoint.pt"

    def round(self) -> tuple[float, float]:
        """Its seconds: by the clock, and of this process."""
        began = time.perf_counter(), time.process_time()
        self.simulation.round()
        checkpoint.save(self.checkpoint, self.simulation.state())
        self.simulation.store.settle()
        return time.perf_counter() - began[0], time.process_time() - began[1]


def round_seconds(rounds: int) -> dict[int, tuple[float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        crowds = {clients: Crowd(clients, Path(folder) / str(clients)) for clients in COUNTS}
        times: dict[int, list[tuple[float, float]]] = {clients: [] for clients in COUNTS}
        gc.collect()
        for _ in range(rounds):
            for clients, crowd in crowds.items():
                times[clients].append(crowd.round())
    return {
        clients: (statistics.median(clock for clock, _ in found[2:]), statistics.median(own for _, own in found[2:]))
        for clients, found in times.items()
    }


def print_peak(clients: int) -> None:
    """Peak resident memory in GB of rounds and an evaluation; mapped pages in use included."""
    with tempfile.TemporaryDirectory() as folder:
        crowd = Crowd(clients, Path(folder))
        for _ in range(10):
            crowd.round()
        crowd.simulation.evaluate()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


def main() -> None:
    short = "--short" in sys.argv
    if sys.argv[1:] and not short:
        return print_peak(int(sys.argv[1]))
    command = [sys.executable, "-m", "benchmarks.memory"]
    peak = {n: float(subprocess.check_output([*command, str(n)], text=True)) for n in (COUNTS[0], COUNTS[-1])}
    seconds = round_seconds(ROUNDS // 3 if short else ROUNDS)
    for clients, (clock, own) in seconds.items():
        print(
            f"{clients} clients, {TAKING_PART} in a round: {1000 * clock:.0f} ms a round, its checkpoint included; "
            f"{1000 * own:.0f} ms of the processor"
        )
    print(f"peak memory: {', '.join(f'{n} clients {found:.2f} GB' for n, found in peak.items())}")
    rows = [
        Row(f"a round of {n} clients, {what}: times one of {COUNTS[0]}", found / fewest, RATIO, at_most=True)
        for n in COUNTS[1:]
        for what, found, fewest in zip(("by the clock", "processor"), seconds[n], seconds[COUNTS[0]], strict=True)
    ]
    show([*rows, Row(f"{COUNTS[-1]} clients, peak memory", peak[COUNTS[-1]], LIMIT, "GB", at_most=True)])
    return None


if __name__ == "__main__":
    main()
