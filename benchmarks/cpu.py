"""CPU speed: the simulator against a large matrix product and against a plain nn.Module loop, in one run.

With one thread and with two. The share of a step that is spent in its five large products bounds what is possible.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import WIDTH, median_seconds, product_rate, random_digits, rival_seconds, show, step_flops
from perinvfl.algorithms import IRM
from perinvfl.core.naming import counted
from perinvfl.data.federation import Federation
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training

LOCAL_STEPS = 5
PENALTY = 10.0


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
    """FedAvg over an IRM loss, one nn.Module and one optimizer a client, both halves of the batch for the penalty."""

    def __init__(self, federation: Federation, batch: int) -> None:
        self.x, self.y, _ = federation.train
        self.batch = batch
        self.server = Plain()
        self.client = Plain()
        self.optimizer = torch.optim.SGD(self.client.parameters(), lr=0.01)
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
        scale = (torch.sigmoid(z) - y) * z
        penalty = scale[::2].mean() * scale[1::2].mean() if self.batch else scale.mean().square()
        loss = F.binary_cross_entropy_with_logits(z, y) + PENALTY * penalty
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def simulation(federation: Federation, batch: int, precision: str, compile: bool = False) -> Simulation:
    algorithm = IRM(local_steps=LOCAL_STEPS, learning_rate=0.01, penalty_weight=PENALTY)
    training = Training(batch_size=batch, executor="loop", device="cpu", precision=precision, compile=compile)  # type: ignore[arg-type]
    return Simulation([algorithm], [federation], [0], training)


def rates(clients: int, samples: int, batch: int, rounds: int) -> dict[str, float]:
    """FLOP/s of the plain loop and of the simulator, taken in turn."""
    federation = random_digits(clients, samples)
    flops = rounds * LOCAL_STEPS * clients * step_flops(batch or samples)

    def some_rounds(rival: PlainLoop | Simulation) -> Callable[[], None]:
        def work() -> None:
            for _ in range(rounds):
                rival.round()

        return work

    seconds = rival_seconds(
        {
            "plain": some_rounds(PlainLoop(federation, batch)),
            "float32": some_rounds(simulation(federation, batch, "float32")),
            "bfloat16": some_rounds(simulation(federation, batch, "bfloat16")),
            **({"compiled": some_rounds(simulation(federation, batch, "float32", compile=True))} if batch else {}),
        },
        repeats=15 if batch == 64 else 5,  # short turns
    )
    return {name: flops / time for name, time in seconds.items()}


def product_seconds(batch: int) -> float:
    """Of the five large products of a step of the network, padded as the simulator pads it."""
    width = math.ceil(WIDTH / 16) * 16
    x, h, first, second = (torch.rand(shape) for shape in ((batch, 392), (batch, width), (width, 392), (width, width)))
    return median_seconds(lambda: (x @ first.t(), h @ second.t(), h @ second, h.t() @ h, h.t() @ x), 15)


def compare(threads: int) -> list[tuple[str, float, float, str]]:
    torch.set_num_threads(threads)
    rows = []
    for case, clients, samples, batch, rounds, share, times, compiled in (
        ("batch 1000", 4, 12500, 1000, 2, 0.75, 1.15, 1.2),
        ("full batch", 4, 12500, 0, 1, 0.75, 1.15, None),
        ("batch 64", 4, 12500, 64, 20, None, 1.0, 1.5),
        ("100 clients, batch 64", 100, 500, 64, 1, None, 1.3, 1.6),
    ):
        name = f"{counted(threads, 'thread')}, {case}"
        product = product_rate(4096)
        measured = rates(clients, samples, batch, rounds)
        others = ", ".join(f"{key} {value / 1e9:.0f}" for key, value in measured.items())
        print(f"{name}: product {product / 1e9:.0f}, {others} GFLOP/s", flush=True)
        if threads == 1 and batch:
            bound = step_flops(batch) / product_seconds(batch)
            print(f"  products alone would be {bound / measured['plain']:.2f} times a plain loop", flush=True)
        if share is not None:
            rows.append((f"{name}: share of a large product", measured["float32"] / product, share, ""))
        rows.append((f"{name}: times a plain loop", measured["float32"] / measured["plain"], times, ""))
        if compiled is not None:
            ratio = measured["compiled"] / measured["plain"]
            rows.append((f"{name}, compiled: times a plain loop", ratio, compiled, ""))
        if batch == 0 or batch >= 1000:
            ratio, wanted = measured["bfloat16"] / measured["plain"], 2.3 if batch else 1.9
            rows.append((f"{name}: bfloat16, times a plain float32 loop", ratio, wanted, ""))
    return rows


def main() -> None:
    show([row for threads in (1, 2) for row in compare(threads)])


if __name__ == "__main__":
    main()
