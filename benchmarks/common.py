"""What the benchmarks share: the paper's problem at the paper's size on random images, true FLOPs, medians, a table."""

import statistics
import time
from collections.abc import Callable

import torch

from perinvfl.data.federation import Federation, Split

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


def show(rows: list[tuple[str, float, float, str]]) -> None:
    """(what, measured, target, unit): printed with the ratio to the target."""
    width = max(len(what) for what, *_ in rows)
    print(f"{'':{width}}  {'measured':>10}  {'target':>8}  {'ratio':>6}")
    for what, measured, target, unit in rows:
        verdict = "" if measured >= target else "  below"
        print(f"{what:{width}}  {measured:10.2f}  {target:8.2f}  {measured / target:6.2f}{verdict}  {unit}")


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
