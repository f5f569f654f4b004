"""What stands around the middle of images, or in single cells of them, in a few numbers, and what these numbers say
about the label.

An image shows its object in the middle; around it is the place where it was taken. A background is seen best in what is
not the object: a network that sees all needs many images before its answers follow the one and not the other, while
colour and texture of the border follow the background alone. Linear discriminant analysis (Fisher 1936) reads them
with no training at all. A mark, such as a tag in a corner, is seen best in the few cells that it covers.
"""

import torch
from torch import Tensor

from perinvfl.core.image_grid import GRID
from perinvfl.core.tree import Params
from perinvfl.data.images import in_middle
from perinvfl.learning.slopes import class_slopes, unscaled

RADIUS = 0.9  # of the middle, in halves of a side: wide, so that little of the object is seen around it
UNIT = 10.0  # brings the numbers of photographs to deviations of about 1
RIDGE = 0.01  # of the variance of each number: they say much the same
MOST_AT_ONCE = 2**24  # numbers of images that are looked at together


def border_numbers(channels: int) -> int:
    return 3 * channels + channels * (channels - 1) // 2 + 4


def border_statistics(images: Tensor, radius: float = RADIUS) -> Tensor:
    """[M, C, H, W] -> [M, border_numbers(C)]: colours, how they vary and go together, and how rough the border is."""
    share = max(1, MOST_AT_ONCE // images[0].numel())
    return torch.cat([_statistics(part, radius) for part in images.split(share)])


def _statistics(images: Tensor, radius: float) -> Tensor:
    x = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    channels, height, width = x.shape[1:]
    border = 1 - in_middle(torch.tensor([radius], device=x.device), height, width)[0]
    border = border / border.sum()

    def mean(values: Tensor) -> Tensor:
        return (values * border).sum((-2, -1))

    colour = mean(x)
    pairs = [(a, b) for a in range(channels) for b in range(a)]
    together = [mean(x[:, a] * x[:, b]) - colour[:, a] * colour[:, b] for a, b in pairs]
    spread = (mean(x.square()) - colour.square()).clamp(min=0).sqrt()
    edges = torch.stack([_steps(x, -1), _steps(x, -2)], 1)  # [M, 2, H, W] from pixel to pixel
    numbers = [colour, spread, mean(edges), mean(edges.square()).sqrt(), colour.square()]
    return UNIT * torch.cat([*numbers, *(pair[:, None] for pair in together)], 1)


def _steps(x: Tensor, axis: int) -> Tensor:
    """[M, H, W] how far pixels are from the one before, on average over channels; 0 at the first."""
    return torch.diff(x, dim=axis, prepend=x.narrow(axis, 0, 1)).abs().mean(1)


def cell_brightness(images: Tensor) -> Tensor:
    """[M, C, H, W] -> [M, GRID²]: the mean of all channels in each cell of a grid, row by row."""
    x = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    return UNIT * torch.nn.functional.adaptive_avg_pool2d(x.mean(1, keepdim=True), GRID).flatten(1)


def find_reading(sums: Params) -> Tensor:
    """[targets, d] weights of the numbers in the discriminant of each target, from the sums of `learning.slopes`."""
    found, noise = unscaled(sums)
    size = noise.diagonal().clamp(min=0).sqrt()
    scale = torch.where(size > 1e-6, 1 / size.clamp(min=1e-6), 0.0)
    alike = scale[:, None] * noise * scale + RIDGE * torch.eye(len(noise), dtype=torch.float64)
    return torch.linalg.solve(alike, (class_slopes(found) * scale).T).T * scale


def apart(sums: Params) -> float:
    """How far the classes lie apart in these numbers together, in standard deviations."""
    found, _ = unscaled(sums)
    inner = find_reading(sums) @ class_slopes(found).T  # [C, C]
    size = inner.diagonal()
    between = size if len(inner) == 1 else size[:, None] + size - inner - inner.T
    return float(between.clamp(min=0).sqrt().max())


def read_border(reading: Tensor, numbers: Tensor, y: Tensor, context: Tensor, classes: int) -> Tensor:
    """[M, targets] how likely each class is by the border alone, all classes being equally common.

    Scores are counted from the middle between the classes of this client: a border that is brighter everywhere here
    says nothing.
    """
    score = numbers.double() @ reading.to(numbers.device).T  # [M, targets]
    real = context >= 0
    each = [score[real & (y == c)].mean(0) for c in range(classes) if bool((real & (y == c)).any())]
    if not each:
        return torch.full_like(score, 1 / classes)  # nothing is known here
    score = score - torch.stack(each).mean(0)
    return torch.sigmoid(score) if score.shape[1] == 1 else torch.softmax(score, 1)
