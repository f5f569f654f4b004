"""ResNet-18 over clients: `python -m benchmarks.resnet`. Images a second, against one plain network on pooled data.

The rival is an ordinary nn.Module of the same size, norm, precision and layout (channels last), one optimizer step on a
batch as large as those of all clients together. Ours is FedAvg with one local step, so both do the same arithmetic on
the same number of images. Every executor is timed with two kinds of convolution (on a GPU those of this project and the
library's), and the fastest is held against the rival.
"""

import argparse
import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import Row, show
from perinvfl.algorithms import FedAvg
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.devices import pick_device
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.models.image_operations import GROUPS
from perinvfl.models.resnet import IMAGENET_DEVIATION, IMAGENET_MEAN


class Block(nn.Module):
    def __init__(self, ins: int, outs: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(ins, outs, 3, stride, 1, bias=False), norm(outs)
        self.conv2, self.bn2 = nn.Conv2d(outs, outs, 3, 1, 1, bias=False), norm(outs)
        self.around = (
            nn.Sequential(nn.Conv2d(ins, outs, 1, stride, bias=False), norm(outs)) if ins != outs else nn.Identity()
        )

    def forward(self, h: Tensor) -> Tensor:
        inner = torch.relu(self.bn1(self.conv1(h)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.around(h))


def plain_resnet18(width: int, norm_name: str) -> nn.Module:
    def norm(channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels) if norm_name == "batch" else nn.GroupNorm(min(GROUPS, channels // 2), channels)

    stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), norm(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks: list[nn.Module] = []
    ins = width
    for layer in range(4):
        outs = width * 2**layer
        blocks += [Block(ins, outs, 2 if layer else 1, norm), Block(outs, outs, 1, norm)]
        ins = outs
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 1))


class Pooled:
    """One network, all clients' images, the batches of all clients as one."""

    def __init__(self, images: Tensor, labels: Tensor, batch: int, width: int, norm: str, bfloat16: bool) -> None:
        self.x, self.y, self.batch, self.bfloat16 = images.flatten(0, 1), labels.flatten(), batch, bfloat16
        device = images.device
        self.model = plain_resnet18(width, norm).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.mean, self.deviation = (
            torch.tensor(values, device=device)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_DEVIATION)
        )

    def step(self) -> None:
        places = torch.randint(len(self.y), (self.batch,)).to(self.x.device)
        x = ((self.x[places] / 255 - self.mean) / self.deviation).contiguous(memory_format=torch.channels_last)
        half = torch.autocast(x.device.type, torch.bfloat16) if self.bfloat16 else contextlib.nullcontext()
        with half:
            z = self.model(x)[:, 0]
        loss = F.binary_cross_entropy_with_logits(z.float(), self.y[places])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def federation(clients: int, samples: int, size: int) -> Federation:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (clients, samples, 3, size, size), generator=draw, dtype=torch.uint8)
    y = (torch.rand(clients, samples, generator=draw) < 0.3).float()
    train = Split(x, y, torch.zeros(clients, samples, dtype=torch.int64))
    return Federation("random photographs", "binary", 1, 1, train, {"0.1": train}, ("0.1",))


def rates(given: argparse.Namespace) -> dict[str, float]:
    """Images a second by name, rivals taken in turn."""
    device = pick_device("auto")
    data = federation(given.clients, given.samples, given.size)
    batch = given.clients * given.batch
    pooled = Pooled(
        data.train.x.to(device),
        data.train.y.to(device),
        batch,
        given.width,
        given.norm,
        bfloat16=given.precision == "bfloat16",
    )
    rivals: dict[str, Callable[[], object]] = {"pooled": pooled.step}
    for executor in ("vmap", "loop"):
        for name, changed in _ways(device).items():
            model = dataclasses.replace(ModelSettings(kind="resnet18", norm=given.norm, width=given.width), **changed)
            training = Training(batch_size=given.batch, executor=executor, precision=given.precision)
            rivals[f"{executor}, {name}"] = Simulation([FedAvg(learning_rate=1e-4)], [data], [0], training, model).round

    def timed(work: Callable[[], object]) -> float:
        _wait()
        began = time.perf_counter()
        for _ in range(given.rounds):
            work()
        _wait()
        return time.perf_counter() - began

    for work in rivals.values():
        work()
        work()
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(given.repeats):
        for name, work in rivals.items():
            times[name].append(timed(work))
    return {name: given.rounds * batch / sorted(found)[len(found) // 2] for name, found in times.items()}


def _ways(device: torch.device) -> dict[str, dict[str, Any]]:
    """Of computing a convolution."""
    if device.type == "cuda":
        return {"kernels": {}, "library": {"kernels": "none"}}
    return {"library": {}, "products": {"convolution": "products"}}


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64 if on_gpu else 8, help="of each client")
    parser.add_argument("--samples", type=int, default=400 if on_gpu else 32, help="of each client")
    parser.add_argument("--size", type=int, default=64, help="pixels of a side")
    parser.add_argument("--width", type=int, default=64 if on_gpu else 16)
    parser.add_argument("--norm", choices=["group", "batch"], default="group")
    parser.add_argument("--precision", default="bfloat16" if on_gpu else "float32")
    parser.add_argument("--rounds", type=int, default=20 if on_gpu else 2, help="timed together")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args(arguments)
    torch.backends.cudnn.benchmark = True  # for all of them
    measured = rates(given)
    print(", ".join(f"{name} {rate:.0f}" for name, rate in measured.items()) + " images/s", flush=True)
    pooled = measured.pop("pooled")
    best = max(measured, key=lambda name: measured[name])
    what = f"{given.clients} x {given.batch} images of {given.size} px, width {given.width}, {given.norm} norm"
    target = 1.3 if on_gpu else 0.9
    show([Row(f"ResNet-18, {what}: {best}, times one network on pooled data", measured[best] / pooled, target)])


if __name__ == "__main__":
    main()
