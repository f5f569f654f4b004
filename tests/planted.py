"""A table of 5 sites and 3 contexts with a planted shortcut: the column `badge` follows the label closely at day, less
at dusk, and against it at night, which is kept for the test."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from perinvfl.core.hyper import hyper
from perinvfl.core.seeding import generator
from perinvfl.data.constant import constant_scores
from perinvfl.data.federation import Federation, Schema, Split, Task
from perinvfl.data.registry import BENCHMARKS, Benchmark

SITES = ("Aarau", "Bern", "Chur", "Davos", "Erlen")
FEATURES = ("age", "dose", "badge", "noise")
MEAN, SCALE = (40.0, 3.0, 0.0, -7.0), (10.0, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class PlantedSettings:
    samples: int = hyper(120, "samples of a site in a context", least=1)
    single: bool = hyper(False, "the last site has one context")
    task: Task = hyper("binary", "binary or regression")

    @property
    def clients(self) -> int:
        return len(SITES)


def planted_federation(settings: PlantedSettings, seed: int) -> Federation:
    train = [_site(settings, seed, i) for i in range(len(SITES))]
    longest = max(len(split.y) for split in train)
    padded = Split(*(torch.stack(parts) for parts in zip(*(_pad(split, longest) for split in train), strict=True)))
    tests = {"night": _stack([_draw(settings, seed, f"night {i}", -0.8, 0) for i in range(len(SITES))])}
    return Federation(
        name="planted_sites", task=settings.task, outputs=1, contexts=2, train=padded, tests=tests, spectrum=("night",),
        notes={"constant": constant_scores(settings.task, padded, tests)},
        schema=Schema(
            SITES, ("day", "dusk"), ("well", "ill") if settings.task == "binary" else (), FEATURES, MEAN, SCALE,
            *((100.0, 7.0) if settings.task == "regression" else ()),
        ),
    )  # fmt: skip


def _site(settings: PlantedSettings, seed: int, site: int) -> Split:
    contexts = [0.95] if settings.single and site == len(SITES) - 1 else [0.95, 0.5]
    parts = [_draw(settings, seed, f"{site} {k}", agreement, k) for k, agreement in enumerate(contexts)]
    return Split(*(torch.cat(piece) for piece in zip(*parts, strict=True)))


def _draw(settings: PlantedSettings, seed: int, purpose: str, agreement: float, context: int) -> Split:
    """agreement: of the badge with the label, from -1 to 1."""
    source = generator(seed, "planted", purpose)
    x = torch.randn(settings.samples, len(FEATURES), generator=source)
    score = x[:, 0] + 0.7 * x[:, 1] + torch.randn(settings.samples, generator=source)
    y = (score > 0).float() if settings.task == "binary" else score
    follows = torch.rand(settings.samples, generator=source) < abs(agreement)
    sign = torch.where(score > 0, 1.0, -1.0) * (1.0 if agreement > 0 else -1.0)
    coin = torch.where(torch.rand(settings.samples, generator=source) < 0.5, 1.0, -1.0)
    x[:, 2] = torch.where(follows, sign, coin)
    return Split(x, y, torch.full((settings.samples,), context))


def _pad(split: Split, length: int) -> Split:
    missing = length - len(split.y)
    return Split(
        torch.cat([split.x, torch.zeros(missing, split.x.shape[1])]),
        torch.cat([split.y, torch.zeros(missing)]),
        torch.cat([split.context, torch.full((missing,), -1)]),
    )


def _stack(splits: list[Split]) -> Split:
    return Split(*(torch.stack(parts) for parts in zip(*splits, strict=True)))


def raw(x: Tensor) -> Tensor:
    """x in the units of the table it would have come from."""
    return x * torch.tensor(SCALE) + torch.tensor(MEAN)


PLANTED = """
name = "planted"
[data]
benchmark = "planted_sites"
{data}
[model]
hidden = [8]
[training]
rounds = {rounds}
evaluate_every = 10
device = "cpu"
[[algorithm]]
name = "{algorithm}"
learning_rate = 0.3
local_steps = 4
{settings}
"""


def planted_file(folder: Path, algorithm: str = "ditto", rounds: int = 20, data: str = "", settings: str = "") -> Path:
    file = folder / "planted.toml"
    file.write_text(PLANTED.format(algorithm=algorithm, rounds=rounds, data=data, settings=settings))
    return file


BENCHMARKS.setdefault("planted_sites", Benchmark(PlantedSettings, planted_federation, "a table of sites"))
