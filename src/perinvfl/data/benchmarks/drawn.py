"""Drawn birds: a stand-in for WaterBird that needs no photograph, so that anyone can run the whole path in seconds.

Landbirds are round with a short beak, a tail held up and legs; waterbirds are flat with a long neck and a long beak.
Plumage says nothing about the class, but each client has its own, as clients of WaterBird have their own species. Land
is trunks before a green slope, water is waves. The rest is as with photographs: the plan, the law of composition, the
groups.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.core.hyper import hyper
from perinvfl.core.memory import check_fits
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.bird_settings import BirdSettings
from perinvfl.data.benchmarks.birds import WATER, Flock, Plan, bird_federation, draw_plan
from perinvfl.data.federation import Federation
from perinvfl.data.photos import compose

WATERBIRD_SHARES = (0.32, 0.42, 0.13, 0.10)  # as in the four index ranges of WaterBird
FINER = 2  # pictures are composed at so many times their size, and then made smaller


@dataclass(frozen=True)
class DrawnSettings(BirdSettings):
    train_per_client: int = hyper(
        60,
        "training birds per client, including those held out; more make shortcuts easier to tell from causes, "
        "and cost time; the default runs in seconds",
        least=1,
    )
    test_per_client: int = hyper(
        20,
        "test birds per client, the same ones in every test context, so that contexts differ by background "
        "alone; more make scores more certain",
        least=1,
    )
    size: int = hyper(
        32,
        "side of the square images, in pixels; smaller ones train faster and show less; 32 still shows what bird it is",
        least=8,
        most=4096,
    )
    birds: int = hyper(
        120,
        "number of birds drawn for each client; what training and test do not take is left over for further "
        "tests; 120 leaves 40 by default",
        least=1,
        most=10**5,
    )
    backgrounds: int = hyper(
        300,
        "number of backgrounds drawn of land, and as many of water; none is used twice in training, so more "
        "birds need more of them; 300 are enough for the default birds",
        least=1,
        most=10**5,
    )


def drawn_federation(settings: DrawnSettings, seed: int) -> Federation:
    plan, images = drawn_pictures(settings, seed)
    return bird_federation("drawn_birds", settings, plan, images, {})


def drawn_pictures(settings: DrawnSettings, seed: int) -> tuple[Plan, Tensor]:
    settings.check("drawn_birds")
    pictures = settings.clients * (settings.train_per_client + settings.test_per_client)
    bytes_needed = 3 * pictures * settings.size**2 + 8 * settings.birds * settings.clients + 16 * settings.backgrounds
    check_fits(bytes_needed, f"drawn_birds: {pictures} pictures of {settings.size} x {settings.size} pixels")
    labels = [
        torch.arange(settings.birds).lt(round(WATERBIRD_SHARES[i % 4] * settings.birds)).long()
        for i in range(settings.clients)
    ]
    plan = draw_plan(settings, seed, Flock(labels, (settings.backgrounds, settings.backgrounds)), "drawn_birds")
    return plan, draw_pictures(plan.pictures, plan.y, settings.size)


def draw_pictures(pictures: Tensor, y: Tensor, size: int) -> Tensor:
    """[K, 3, size, size] uint8. The same bird and the same background look the same in every picture."""
    shown = []
    for rows, classes in zip(pictures.split(256), y.split(256), strict=True):
        client, bird, side, background = rows.unbind(1)
        plumage, mask = draw_birds(classes, _numbers("bird", bird + 10_000 * client, 8), client, FINER * size)
        behind = draw_backgrounds(side, _numbers("background", background + 10_000 * side, 8), FINER * size)
        whole = compose(plumage, mask, behind).permute(0, 3, 1, 2).float()
        shown.append(torch.nn.functional.avg_pool2d(whole, FINER).round().to(torch.uint8))
    return torch.cat(shown)


def draw_birds(y: Tensor, chance: Tensor, client: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Plumage [K, size, size, 3], 0 to 255, and mask [K, size, size, 1], 0 to 1."""
    facing = torch.where(chance[:, 0] < 0.5, -1.0, 1.0)
    scale = 0.75 + 0.35 * chance[:, 1]
    across, down = _grid(size)
    u = (across - 0.2 * (chance[:, 2, None, None] - 0.5)) * facing[:, None, None] / scale[:, None, None]
    v = (down - 0.2 * (chance[:, 3, None, None] - 0.5)) / scale[:, None, None]
    sharp = size / 4

    def ellipse(x: float, y: float, half_width: float, half_height: float) -> Tensor:
        distance = (((u - x) / half_width).square() + ((v - y) / half_height).square()).sqrt()
        return ((1 - distance) * sharp * min(half_width, half_height) + 0.5).clamp(0, 1)

    def union(parts: list[Tensor]) -> Tensor:
        return torch.stack(parts).amax(0)

    landbird = union(
        [
            ellipse(0.0, 0.0, 0.34, 0.3),
            ellipse(0.27, -0.27, 0.17, 0.17),
            ellipse(0.46, -0.25, 0.1, 0.04),  # beak
            ellipse(-0.38, -0.24, 0.08, 0.24),  # tail
            ellipse(-0.06, 0.42, 0.03, 0.18),
            ellipse(0.1, 0.42, 0.03, 0.18),
        ]
    )
    waterbird = union(
        [
            ellipse(-0.08, 0.14, 0.46, 0.2),
            ellipse(0.32, -0.16, 0.07, 0.36),  # neck
            ellipse(0.36, -0.48, 0.12, 0.1),
            ellipse(0.58, -0.46, 0.2, 0.04),  # beak
        ]
    )
    mask = torch.where((y == WATER)[:, None, None], waterbird, landbird)
    hue = (0.25 * client + 0.3 * chance[:, 4])[:, None, None] + 0.08 * torch.sin(9 * u + 7 * v)
    light = (0.55 + 0.35 * chance[:, 5])[:, None, None] - 0.15 * v
    return 255 * _colour(hue, light).clamp(0, 1), mask[..., None]


def draw_backgrounds(side: Tensor, chance: Tensor, size: int) -> Tensor:
    """[K, size, size, 3], 0 to 255."""
    across, down = _grid(size)
    a, b, c, d, e, f, g, h = (chance[:, k, None, None] for k in range(8))
    trunks = torch.sin((14 + 18 * a) * across + 6.3 * b + 0.6 * torch.sin(4 * down + 6.3 * c))
    slope = 0.5 + 0.2 * down * (d - 0.5) + 0.16 * trunks + 0.05 * torch.sin((30 + 20 * e) * (across + down))
    land = torch.stack([slope * (0.45 + 0.35 * f), slope * (0.75 + 0.2 * g), slope * (0.25 + 0.15 * h)], -1)
    waves = torch.sin((14 + 22 * a) * down * (1.2 + down) + 6.3 * b + 0.8 * torch.sin((2 + 3 * c) * across + 6.3 * d))
    depth = 0.55 + 0.12 * waves - 0.18 * down * e
    water = torch.stack([depth * (0.25 + 0.3 * f), depth * (0.6 + 0.25 * g), depth * (0.95 + 0.3 * h)], -1)
    return 255 * torch.where((side == WATER)[:, None, None, None], water, land).clamp(0, 1)


def _grid(size: int) -> tuple[Tensor, Tensor]:
    line = (torch.arange(size) + 0.5) / size * 2 - 1
    return line[None, None, :], line[None, :, None]


def _colour(hue: Tensor, light: Tensor) -> Tensor:
    waves = [0.75 + 0.25 * torch.cos(6.283 * (hue + shift)) for shift in (0.0, 0.33, 0.67)]
    return torch.stack(waves, -1) * light[..., None]


def _numbers(purpose: str, which: Tensor, count: int) -> Tensor:
    """[K, count] uniform numbers that belong to each thing for good, whatever else is drawn and whatever the seed."""
    drawn = {thing: torch.rand(count, generator=generator(0, "drawn", purpose, thing)) for thing in set(which.tolist())}
    return torch.stack([drawn[thing] for thing in which.tolist()])
