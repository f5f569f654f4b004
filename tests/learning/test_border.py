"""What the border of images says about the label: against slow counts."""

import math

import pytest
import torch
from torch import Tensor

from perinvfl.core.image_grid import GRID
from perinvfl.core.seeding import generator
from perinvfl.data.images import EDGE
from perinvfl.learning.border import (
    RADIUS,
    RIDGE,
    UNIT,
    border_numbers,
    border_statistics,
    cell_brightness,
    find_reading,
    read_border,
)
from perinvfl.learning.slopes import client_sums, zero_sums


def slow_statistics(image: Tensor) -> list[float]:
    """One pixel at a time."""
    channels, height, width = image.shape
    share, pixels = [], [(row, column) for row in range(height) for column in range(width)]
    for row, column in pixels:
        distance = math.hypot((row + 0.5) * 2 / height - 1, (column + 0.5) * 2 / width - 1)
        share.append(1 - 1 / (1 + math.exp(-(RADIUS - distance) / EDGE)))
    share = [s / sum(share) for s in share]

    def mean(of: list[float]) -> float:
        return sum(s * value for s, value in zip(share, of, strict=True))

    colours = [[float(image[c, row, column]) / 255 for row, column in pixels] for c in range(channels)]
    means = [mean(colour) for colour in colours]
    spreads = [
        math.sqrt(mean([(value - m) ** 2 for value in colour])) for colour, m in zip(colours, means, strict=True)
    ]
    edges: list[list[float]] = [[], []]
    for row, column in pixels:
        for axis, (r, c) in enumerate(((row, column - 1), (row - 1, column))):
            steps = [abs(float(image[k, row, column]) - float(image[k, r, c])) / 255 for k in range(channels)]
            edges[axis].append(sum(steps) / channels if min(r, c) >= 0 else 0.0)
    rough = [mean(edge) for edge in edges] + [math.sqrt(mean([e * e for e in edge])) for edge in edges]
    pairs = [(a, b) for a in range(channels) for b in range(a)]
    together = [
        mean([(u - means[a]) * (v - means[b]) for u, v in zip(colours[a], colours[b], strict=True)]) for a, b in pairs
    ]
    return [UNIT * value for value in [*means, *spreads, *rough, *(m * m for m in means), *together]]


@pytest.mark.parametrize("channels", [1, 3])
def test_statistics_are_those_of_a_slow_count(channels: int) -> None:
    images = torch.randint(256, (3, channels, 9, 12), dtype=torch.uint8, generator=generator(0, "images"))
    found = border_statistics(images)
    assert found.shape == (3, border_numbers(channels))
    slow = torch.tensor([slow_statistics(image) for image in images])
    torch.testing.assert_close(found, slow, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(border_statistics(images / 255), found, rtol=1e-5, atol=1e-5)
    middle = images.clone()
    middle[:, :, 3:6, 4:8] = 255 - middle[:, :, 3:6, 4:8]
    torch.testing.assert_close(border_statistics(middle), found, rtol=1e-3, atol=1e-3)  # the object is not looked at


def two_classes(shift: float) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers of 400 samples whose classes lie apart in the first of five, which repeats in the second."""
    source = generator(1, "numbers")
    y = (torch.rand(400, generator=source) < 0.3).float()
    x = torch.randn(400, 5, generator=source)
    x[:, 0] += shift * y
    x[:, 1] = x[:, 0] + 0.1 * x[:, 1]
    return x, y, torch.zeros(400, dtype=torch.long)


def test_the_reading_is_the_linear_discriminant() -> None:
    x, y, context = two_classes(1.5)
    sums = client_sums("binary", 1, 1, x, y, context)
    assert {name: leaf.shape for name, leaf in sums.items()} == {
        name: leaf.shape for name, leaf in zero_sums((5,), 1, 1).items()
    }
    means = [x[y == c].double().mean(0) for c in (0, 1)]
    left = torch.cat([x[y == c].double() - means[c] for c in (0, 1)])
    noise = left.T @ left / (len(y) - 2)
    noise = noise + RIDGE * torch.diag(noise.diagonal())
    weights = torch.linalg.solve(noise, means[1] - means[0])
    reading = find_reading(sums)
    torch.testing.assert_close(reading[0], weights, rtol=1e-3, atol=1e-3)
    likely = read_border(reading, x + 7, y, context, 2)  # a client that is brighter everywhere
    score = (x.double() - (means[0] + means[1]) / 2) @ reading[0]
    torch.testing.assert_close(likely[:, 0], torch.sigmoid(score), rtol=1e-3, atol=1e-3)


def test_padding_and_absent_classes_have_no_part() -> None:
    x, y, context = two_classes(1.5)
    reading = find_reading(client_sums("binary", 1, 1, x, y, context))
    longer = torch.cat([x, torch.full((50, 5), 1e3)]), torch.cat([y, torch.ones(50)])
    padded = read_border(reading, *longer, torch.cat([context, torch.full((50,), -1)]), 2)
    torch.testing.assert_close(padded[:400], read_border(reading, x, y, context, 2))
    alone = read_border(reading, x, torch.zeros(400), context, 2)
    assert bool(torch.isfinite(alone).all()) and 0.3 < float(alone.mean()) < 0.7
    assert read_border(reading, x, y, torch.full((400,), -1), 2).unique().tolist() == [0.5]


def test_each_of_three_classes_is_read() -> None:
    source = generator(2, "numbers")
    y = torch.randint(3, (600,), generator=source)
    x = torch.randn(600, 4, generator=source) + 4 * torch.eye(4)[y]
    context = torch.zeros(600, dtype=torch.long)
    likely = read_border(find_reading(client_sums("multiclass", 3, 1, x, y, context)), x, y, context, 3)
    assert likely.shape == (600, 3) and float((likely.argmax(1) == y).float().mean()) > 0.95
    torch.testing.assert_close(likely.sum(1), torch.ones(600, dtype=torch.float64))


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
@pytest.mark.parametrize("side", [5, 12, 14, 64])
def test_cells_are_means_of_pixels(side: int, kind: torch.dtype) -> None:
    images = torch.randint(0, 256, (3, 2, side, side), generator=generator(0, "cells")).to(kind)
    scale = 255 if kind == torch.uint8 else 1
    found = cell_brightness(images)
    assert found.shape == (3, GRID**2)
    for cell in range(GRID**2):
        row, column = divmod(cell, GRID)
        rows = range(row * side // GRID, math.ceil((row + 1) * side / GRID))
        columns = range(column * side // GRID, math.ceil((column + 1) * side / GRID))
        pixels = [images[:, channel, i, j].double() / scale for channel in range(2) for i in rows for j in columns]
        torch.testing.assert_close(found[:, cell].double(), UNIT * torch.stack(pixels).mean(0), rtol=1e-5, atol=1e-6)
