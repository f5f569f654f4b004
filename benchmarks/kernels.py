"""How many operations one small round asks of a GPU: `python -m benchmarks.kernels`.

Counted where they are called, on a CPU, in the program that a GPU records and replays: each that takes a pass of its
own over memory, not views. A round of 4 x 512 samples takes a GPU as long as it takes to begin its kernels. On an H200,
324 operations were 412 kernels and took 0.7 ms; 1500 rounds a second leave room for 308.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.common import Row, random_digits, show
from perinvfl.algorithms import PerInvFL
from perinvfl.algorithms.base import Algorithm
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training

ROOM = 308.0
WITHOUT_KERNEL = (
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "new_empty_strided",
    "lift_fresh",
    "_unsafe_view",
)


class Counted(TorchDispatchMode):
    """Counts operations that write a tensor; those on one plain number happen before a GPU is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple | list) and result else result
        if isinstance(first, torch.Tensor) and first.ndim and not operation.is_view:
            self.count += str(operation).split(".")[1] not in WITHOUT_KERNEL  # "aten.mul.Tensor"
        return result


def operations(algorithm: Algorithm, batch: int = 512) -> int:
    simulation = Simulation(
        [algorithm], [random_digits(4, 600)], [0], Training(executor="vmap", batch_size=batch, device="cpu")
    )
    simulation.round()
    ids = simulation.participants(1)
    indices = simulation.sample_indices(1, ids, algorithm.batches_per_round(), "batches")
    cohort = simulation.cohort(ids, indices)
    with Counted() as counted:
        simulation.advance(cohort)
    return counted.count


def main() -> None:
    show([Row("operations of one round 4 x 512, R = S = 1", operations(PerInvFL()), ROOM, "", True)])


if __name__ == "__main__":
    main()
