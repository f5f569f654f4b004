"""The Hessian-free Per-FedAvg once more, written out in double precision, with the batches that are drawn here.

Rounding errors grow in this variant until they show in the accuracy. This tells how far: it computes the run of a seed
from the first weights and from two others that differ from them by rounding errors alone, a ten-millionth.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.parity.files import NAMES, batches_file, plain_file, planned, read_batches, read_data
from benchmarks.parity.plan import CLASSES, CLIENTS, PIXELS, TRAIN, Regime

NAME = "Per-FedAvg, Hessian-free, same batches"
STARTS, NUDGE = 3, 1e-7
Weights = list[Tensor]  # [clients, ...] in the order of NAMES


def run(folder: Path) -> None:
    for regime, name, method, seed in planned({NAME}):
        path = plain_file(folder, name, seed)
        if not path.exists():
            found = [accuracy(folder, regime, method.ours, seed, start) for start in range(STARTS)]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found), encoding="utf-8")
            print(path.stem, found, flush=True)


def accuracy(folder: Path, regime: Regime, settings: dict[str, float], seed: int, start: int) -> float:
    """Of the last global model, on everyone's tests."""
    data, places = read_data(folder, seed), torch.from_numpy(read_batches(batches_file(folder, NAME, seed)))
    x = torch.from_numpy(data["x"]).double().reshape(CLIENTS, -1, PIXELS)
    y = torch.from_numpy(data["y"]).reshape(CLIENTS, -1)
    shared = [torch.from_numpy(data[name]).double() for name in NAMES]
    if start:
        source = torch.Generator().manual_seed(start)
        shared = [leaf * (1 + NUDGE * torch.randn(leaf.shape, generator=source)) for leaf in shared]
    client = torch.arange(CLIENTS)[:, None]
    for t in range(regime.rounds):
        w = [leaf.expand(CLIENTS, *leaf.shape) for leaf in shared]
        for step in range(int(settings["local_steps"])):
            drawn = [(client, places[t, :, 3 * step + number]) for number in range(3)]
            w = stepped(w, [(x[rows], y[rows]) for rows in drawn], settings)
        shared = [leaf.mean(0) for leaf in w]
    outputs = _forward([leaf[None] for leaf in shared], x[:, TRAIN:].reshape(1, -1, PIXELS))[1]
    return float((outputs[0].argmax(-1) == y[:, TRAIN:].flatten()).double().mean())


def stepped(w: Weights, batches: list[tuple[Tensor, Tensor]], settings: dict[str, float]) -> Weights:
    """w − β (g − α (∇f(w + δg; D'') − ∇f(w − δg; D'')) / 2δ) with g = ∇f(w − α ∇f(w; D); D')."""
    alpha, beta, delta = (settings[key] for key in ("personal_learning_rate", "learning_rate", "difference"))
    g = gradient(_plus(w, -alpha, gradient(w, *batches[0])), *batches[1])
    ahead, behind = (gradient(_plus(w, sign * delta, g), *batches[2]) for sign in (1, -1))
    curved = _plus(g, -alpha / (2 * delta), _plus(ahead, -1, behind))
    return _plus(w, -beta, curved)


def gradient(w: Weights, x: Tensor, y: Tensor) -> Weights:
    """Of every client's mean cross-entropy, by hand."""
    hidden, outputs = _forward(w, x)
    slope = (outputs.softmax(-1) - torch.nn.functional.one_hot(y, CLASSES)) / x.shape[1]
    below = slope @ w[2] * (hidden > 0)
    return [below.mT @ x, below.sum(1), slope.mT @ hidden, slope.sum(1)]


def _forward(w: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    hidden = (x @ w[0].mT + w[1][:, None]).relu()
    return hidden, hidden @ w[2].mT + w[3][:, None]


def _plus(w: Weights, factor: float, direction: Weights) -> Weights:
    return [leaf + factor * way for leaf, way in zip(w, direction, strict=True)]
