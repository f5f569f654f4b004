"""CPU speed of the simulator, as times the speed of a plain nn.Module loop: FedAvg and IRM, with one thread and two.

One thread is compared in seconds of the processor, two by the clock. `python -m benchmarks.cpu --short` leaves out the
full batch and takes fewer turns; words pick cases, such as `python -m benchmarks.cpu fedavg 64`.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import WIDTH, Row, product_rate, random_digits, show, step_flops
from benchmarks.turns import least_seconds
from perinvfl.algorithms import IRM, Algorithm, FedAvg
from perinvfl.core.naming import counted
from perinvfl.data.federation import Federation
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training

LOCAL_STEPS = 5
RATE = 0.01
PENALTY = 10.0
WAYS = ("float32", "compiled", "bfloat16")


class Plain(nn.Module):
    """The paper's MLP as anyone would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(392, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))[:, 0]


class PlainLoop:
    """FedAvg as anyone would write it, over the risk, or IRM's loss with both halves of a batch in its penalty."""

    def __init__(self, federation: Federation, batch: int, penalty: float) -> None:
        self.x, self.y, _ = federation.train
        self.batch, self.penalty = batch, penalty
        self.server = Plain()
        self.client = Plain()
        self.optimizer = torch.optim.SGD(self.client.parameters(), lr=RATE)
        self.total = [torch.zeros_like(p) for p in self.server.parameters()]

    def round(self) -> None:
        for total in self.total:
            total.zero_()
        for i in range(len(self.x)):
            self.client.load_state_dict(self.server.state_dict())
            for _ in range(LOCAL_STEPS):
                self.step(i)
            for total, p in zip(self.total, self.client.parameters(), strict=True):
                total.add_(p.detach(), alpha=1 / len(self.x))
        for p, total in zip(self.server.parameters(), self.total, strict=True):
            p.data.copy_(total)

    def step(self, i: int) -> None:
        x, y = self.x[i], self.y[i]
        if self.batch:
            places = torch.randint(len(y), (self.batch,))
            x, y = x[places], y[places]
        z = self.client(x)
        loss = F.binary_cross_entropy_with_logits(z, y)
        if self.penalty:
            scale = (torch.sigmoid(z) - y) * z
            squared = scale[::2].mean() * scale[1::2].mean() if self.batch else scale.mean().square()
            loss = loss + self.penalty * squared
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Case(NamedTuple):
    name: str
    clients: int
    samples: int  # of each client
    batch: int  # 0: all of them
    rounds: int  # of one turn
    turns: int
    targets: dict[str, dict[str, float]]  # by algorithm and way of running


CASES = (
    Case(
        "batch 1000, 4 clients",
        4,
        12500,
        1000,
        2,
        15,
        {
            "fedavg": {"float32": 1.15, "compiled": 1.2, "bfloat16": 2.3},
            "irm": {"float32": 1.15, "compiled": 1.2, "bfloat16": 2.3},
        },
    ),
    Case(
        "batch 64, 100 clients",
        100,
        500,
        64,
        1,
        15,
        {
            "fedavg": {"float32": 1.3, "compiled": 1.6},
            "irm": {"float32": 1.3, "compiled": 1.6},
        },
    ),
    Case("full batch, 4 clients", 4, 12500, 0, 1, 5, {"irm": {"float32": 1.15, "bfloat16": 1.9}}),
)


def plain_loop(case: Case, algorithm: str) -> Callable[[], None]:
    loop = PlainLoop(random_digits(case.clients, case.samples), case.batch, PENALTY if algorithm == "irm" else 0.0)
    return partial(_some_rounds, loop, case.rounds)


def simulator(case: Case, algorithm: str, way: str) -> Callable[[], None]:
    chosen: Algorithm = FedAvg(local_steps=LOCAL_STEPS, learning_rate=RATE)
    if algorithm == "irm":
        chosen = IRM(local_steps=LOCAL_STEPS, learning_rate=RATE, penalty_weight=PENALTY)
    training = Training(
        batch_size=case.batch,
        executor="loop",
        device="cpu",
        precision="bfloat16" if way == "bfloat16" else "float32",
        compile=way == "compiled",
    )
    simulation = Simulation([chosen], [random_digits(case.clients, case.samples)], [0], training)
    return partial(_some_rounds, simulation, case.rounds)


def _some_rounds(rival: PlainLoop | Simulation, rounds: int) -> None:
    for _ in range(rounds):
        rival.round()


def compare(case: Case, algorithm: str, threads: int, turns: int, only: list[str]) -> list[Row]:
    targets = {way: target for way, target in case.targets[algorithm].items() if not only or way in only}
    rivals: dict[str, Callable[[], Callable[[], object]]] = {"plain": partial(plain_loop, case, algorithm)}
    rivals |= {way: partial(simulator, case, algorithm, way) for way in targets}
    found = least_seconds(rivals, turns, threads)
    seconds = {name: each.processor if threads == 1 else each.clock for name, each in found.items()}
    flops = case.rounds * LOCAL_STEPS * case.clients * step_flops(case.batch or case.samples)
    name = f"{counted(threads, 'thread')}, {algorithm}, {case.name}"
    rates = ", ".join(f"{way} {flops / each / 1e9:.0f}" for way, each in seconds.items())
    print(f"{name}: {rates} GFLOP/s", flush=True)
    return [
        Row(f"CPU, {name}, {way}: times a plain loop", seconds["plain"] / seconds[way], targets[way]) for way in targets
    ]


def main() -> None:
    short = "--short" in sys.argv
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    only = [word for word in words if word in WAYS]
    words = [word for word in words if word not in WAYS]
    torch.set_num_threads(1)
    print(f"a 2048^3 product, one thread: {product_rate(2048) / 1e9:.0f} GFLOP/s", flush=True)
    rows: list[Row] = []
    for threads in (1, 2):
        for case in CASES:
            for algorithm in case.targets:
                name = f"{counted(threads, 'thread')}, {algorithm}, {case.name}"
                if all(word in name for word in words) and not (short and case.batch == 0):
                    rows += compare(case, algorithm, threads, case.turns // 3 if short else case.turns, only)
    show(rows)


if __name__ == "__main__":
    main()
