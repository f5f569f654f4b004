"""The colours of images in a few numbers, which of them change their meaning, and what is left to see without them."""

from typing import NamedTuple

import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.learning.border import MOST_AT_ONCE
from perinvfl.learning.slopes import JOINT_COLUMNS, ROUNDED, class_slopes, columns_of, distance, unscaled
from perinvfl.learning.variation import LEANED_ON, Variation, find_variation

LEAST_LEFT = 0.25  # of the contrasts within images: with less, the object is gone too


def colour_numbers(channels: int) -> int:
    """The means of the channels and, unless there are too many to look at together, how they go together."""
    joint = channels + channels * (channels + 1) // 2
    return joint if joint <= JOINT_COLUMNS else channels


def colour_statistics(images: Tensor) -> Tensor:
    """[M, C, H, W] -> [M, colour_numbers(C)]: the means of the channels, then their products within an image."""
    share = max(1, MOST_AT_ONCE // images[0].numel())
    return torch.cat([_statistics(part) for part in images.split(share)])


def _statistics(images: Tensor) -> Tensor:
    x = (images.double() / 255 if images.dtype == torch.uint8 else images.double()).flatten(2)
    colour, channels = x.mean(2), x.shape[1]
    if colour_numbers(channels) == channels:
        return colour
    centred = x - colour[..., None]
    together = centred @ centred.transpose(1, 2) / x.shape[2]  # [M, C, C]
    rows, columns = torch.tril_indices(channels, channels)
    return torch.cat([colour, together[:, rows, columns]], 1)


class Colours(NamedTuple):
    """What was found among the colours of images."""

    variation: Variation
    evened: bool  # brightness is a part of it: images are to be brought to the same brightness and contrast


def find_colours(sums: Params, channels: int) -> Colours:
    """By the sums of `colour_statistics`: mixtures of colours to take away, as many as leave something to see.

    Colours are one thing: where one mixture changes its meaning, others that a model would lean on are not trusted
    either, but for the one that shows most of the image. Without its brightness a gray image shows nothing, so that is
    evened out and not taken away.
    """
    means = columns_of(sums, slice(channels)) if len(sums["total"]) > channels else sums
    found = find_variation(means, True)
    if not found.directions:
        return Colours(found, False)
    known, noise = unscaled(means)
    away = [torch.tensor(direction, dtype=torch.float64) for direction in found.directions]
    contrasts, slopes = contrasts_of(sums, channels), class_slopes(known)
    while away and left_without(contrasts, _taken(found, away).glass(channels)) < LEAST_LEFT:
        away.pop()
    if not away:
        return Colours(_taken(found, away), True)
    glass = _taken(found, away).glass(channels)
    evened = _leaned_on(slopes, noise, away)[0] > LEANED_ON
    shows_most = torch.linalg.eigh(glass @ contrasts @ glass.T).eigenvectors[:, -1]
    strength, more = _leaned_on(slopes, noise, [shows_most, *away])
    while strength > LEANED_ON:
        away.append(more)
        strength, more = _leaned_on(slopes, noise, [shows_most, *away])
    return Colours(_taken(found, away), evened)


def _taken(found: Variation, away: list[Tensor]) -> Variation:
    return Variation(found.source, directions=tuple(tuple(v.tolist()) for v in away), kept=not away)


def _leaned_on(slopes: Tensor, noise: Tensor, away: list[Tensor]) -> tuple[float, Tensor]:
    """Of what is left, the mixture in which classes lie furthest apart: how far, in standard deviations, and which."""
    basis = torch.linalg.svd(torch.stack(away), full_matrices=True).Vh[len(away) :].T  # [d, d − k]
    if not basis.shape[1]:
        return 0.0, basis.sum(1)
    least = 2 * ROUNDED * noise.trace()  # of gray images nothing varies but their brightness
    root = torch.linalg.cholesky(basis.T @ noise @ basis + least * torch.eye(basis.shape[1], dtype=torch.float64))
    white = torch.linalg.solve_triangular(root, (slopes @ basis).T, upper=False).T  # [C, d − k]
    best = torch.linalg.svd(white, full_matrices=False).Vh[0]
    mixture = basis @ root @ best
    return float(distance(white @ best)), mixture / mixture.norm()


def contrasts_of(sums: Params, channels: int) -> Tensor:
    """[C, C] how channels vary and go together within images, up to a factor; 0 where there are too many channels."""
    together = torch.zeros(channels, channels, dtype=torch.float64)
    if len(sums["total"]) > channels:
        rows, columns = torch.tril_indices(channels, channels)
        together[rows, columns] = sums["total"][channels:].double().cpu()
    return together + together.tril(-1).T


def left_without(contrasts: Tensor, glass: Tensor) -> float:
    """The share of the contrasts within images that is left when colours are seen through this glass [C, C]."""
    whole = contrasts.trace()
    return float((glass @ contrasts @ glass.T).trace() / whole) if float(whole) > 0 else 1.0
