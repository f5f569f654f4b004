"""What the benchmarks share: the paper's problem at the paper's size on random images, true FLOPs, medians, a table."""

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from perinvfl.data.federation import Federation, Split

ROWS = "PERINVFL_BENCHMARK_ROWS"  # the file that rows are appended to
WIDTH = 390  # the paper's hidden width; padding is not counted as work done


def step_flops(samples: int) -> float:
    """True floating-point operations of one training step of the MLP 392-390-390-1: forward, and backward without
    the gradient of the input."""
    return samples * (4 * 392 * WIDTH + 6 * WIDTH * WIDTH + 6 * WIDTH)


def random_digits(clients: int, samples: int, seed: int = 0) -> Federation:
    """Random images in the shape of the coloured digits: the arithmetic is the same whatever they show."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(clients, samples, 2, 14, 14, generator=draw)
    y = (torch.rand(clients, samples, generator=draw) < 0.5).float()
    train = Split(x, y, torch.zeros(clients, samples, dtype=torch.int64))
    test = Split(*(part[:, :16] for part in train))
    return Federation("random digits", "binary", 1, 1, train, {"0.1": test}, ("0.1",))


def median_seconds(work: Callable[[], object], repeats: int = 7, warm: int = 2) -> float:
    for _ in range(warm):
        work()
    times = []
    for _ in range(repeats):
        _wait()
        began = time.perf_counter()
        work()
        _wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def rival_seconds(rivals: dict[str, Callable[[], object]], repeats: int = 5) -> dict[str, float]:
    """Median seconds of each, taken in turn: two-thread timings jump between modes, and all must meet the same ones.

    Each turn begins with a pause and an untimed call: the idle threads of the one before spin for a while.
    """
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(repeats):
        for name, work in rivals.items():
            time.sleep(0.2)
            work()
            began = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in times.items()}


def product_rate(size: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> float:
    """FLOP/s of a large matrix product."""
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    return 2 * size**3 / median_seconds(lambda: a @ b, 5, 2)


class Row(NamedTuple):
    """One figure beside its target."""

    what: str
    measured: float
    target: float
    unit: str = ""
    at_most: bool = False  # the target is the most that it may be

    @property
    def reached(self) -> float:
        """1 where the target is reached."""
        return self.target / self.measured if self.at_most else self.measured / self.target


def show(rows: list[Row]) -> None:
    """A table; and for `python -m benchmarks`, which says where, a file of it."""
    width = max((len(row.what) for row in rows), default=0)
    print(f"{'':{width}}  {'measured':>10}  {'target':>8}  {'ratio':>6}")
    for row in rows:
        verdict = "" if row.reached >= 1 else "  missed"
        target = f"{'<= ' if row.at_most else ''}{row.target:g}"
        figures = f"{row.measured:10.2f}  {target:>8}  {row.reached:6.2f}"
        print(f"{row.what:{width}}  {figures}{verdict}  {row.unit}".rstrip())
    if os.environ.get(ROWS):
        with open(os.environ[ROWS], "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
