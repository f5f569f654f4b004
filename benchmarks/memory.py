"""Memory: 10 000 clients with the paper's MLP, 20 of them in a round; states at rest lie on disk."""

import resource
import tempfile
from pathlib import Path

from benchmarks.common import random_digits, show
from perinvfl.algorithms import PerInvFL
from perinvfl.core import checkpoint
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training

LIMIT = 24.0  # GB


def peak_gigabytes(clients: int, taking_part: int, rounds: int) -> float:
    """Peak resident memory of PerInvFL rounds, checkpoints included.

    The mapped files count only while their pages are in use; the kernel may take them back at any time.
    """
    algorithm = PerInvFL(learning_rate=0.01, personal_learning_rate=0.01)
    training = Training(batch_size=16, fraction=taking_part / clients, at_rest="disk", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation([algorithm], [random_digits(clients, 20)], [0], training, folder=Path(folder) / "rest")
        for _ in range(rounds):
            simulation.round()
            checkpoint.save(Path(folder) / "checkpoint.pt", simulation.state())
            simulation.store.settle()
        visited = len(simulation.store.settled)  # type: ignore[union-attr]
    print(f"{clients} clients, {taking_part} in a round, {rounds} rounds: {visited} have taken part", flush=True)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    before = peak_gigabytes(100, 20, 10)
    after = peak_gigabytes(10_000, 20, 100)
    print(f"peak memory: 100 clients {before:.2f} GB, 10000 clients {after:.2f} GB (images of all clients included)")
    show([("10000 clients, 20 in a round: 24 GB over the peak", LIMIT / after, 1.0, "")])


if __name__ == "__main__":
    main()
