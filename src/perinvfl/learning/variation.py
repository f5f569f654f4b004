"""What changes its meaning between contexts: what follows from the sums of `learning.slopes`.

A shortcut is what relates to the label differently from context to context: a column (for images: a mixture of colour
channels) whose slope on the label varies. Sampling noise makes slopes differ by a known amount, so a chi-square test
tells more than that. Kin in the literature: Woolf's test of equal odds ratios (1955); invariant-feature subspace
recovery (Wang, Si, Li & Zhao 2022), which looks at the same class means.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.learning.levels import merge_levels
from perinvfl.learning.slope_test import Group, SlopeTest, chance
from perinvfl.learning.slopes import (
    SCALE,
    class_slopes,
    distance,
    freedom,
    inverse,
    spread_weight,
    unscaled,
    weighed,
)

ALPHA = 0.003  # how often nothing at all would look like this
# The same between contexts, of columns in which the classes lie at least so many standard deviations apart: the more a
# model would lean on a column, the more is lost if it varies and is not found.
ALPHAS = (2.0, 0.05), (1.5, 0.01), (1.0, 0.005)
CLIENT_ALPHA = 0.05  # the same between clients, where what half of the columns show counts as nothing
# Differences of class means, in standard deviations, that a model leans on. Between clients columns that have them are
# looked at alone, since weak ones differ by style as well.
LEANED_ON, LEANED_ON_BETWEEN_CLIENTS = 1.0, 1.5
# Between clients, where there are more than two classes: of columns, and of a model's answers. A model that has only
# begun to learn many classes is right more often where the style is easier.
LEANED_ON_OF_SEVERAL, ANSWERS_OF_SEVERAL = 1.7, 2.0
LEANED_ON_AT_ALL = 0.5  # of the colours of images
NEARLY = 0.8  # of the largest statistic counts as much

# Times chance: how far half of the cells of images may vary between clients that have one style; and times as far as
# half of them a cell must vary where clients may have several.
MOST_STYLE, FAR_BEYOND = 1.5, 10.0
NO_GAPS: Mapping[int, int] = MappingProxyType({})
Source = Literal["contexts", "clients"]


@dataclass(frozen=True)
class Variation:
    """What was found to change its meaning."""

    source: Source | None  # seen between contexts of a client, between clients, or nowhere
    columns: tuple[int, ...] = ()  # that are to be left out
    directions: tuple[tuple[float, ...], ...] = ()  # or mixtures of columns that are to be taken away
    kept: bool = False  # it was found, but nothing else tells the label: nothing is taken away
    compared: Source | None = None  # what decided, of a table
    style: tuple[int, ...] = ()  # columns that differ between clients, not enough or not where it counts: they stay

    def glass(self, d: int) -> Tensor:
        """[d, d] what turns x into x without what was found."""
        keep = torch.ones(d, dtype=torch.float64)
        keep[list(self.columns)] = 0
        v = torch.tensor(self.directions, dtype=torch.float64).reshape(-1, d).T
        return torch.diag(keep) - v @ torch.linalg.pinv(v)


class Answer(NamedTuple):
    """A column that was found to vary, and how far the classes lie apart in it, in standard deviations."""

    place: int
    strength: float


def find_variation(sums: Params, images: bool, gaps: Mapping[int, int] = NO_GAPS) -> Variation:
    """What the sums over all clients say. gaps: of columns that say where another is missing, the other.

    Where clients have several contexts, what varies between contexts decides; what then differs between clients is
    their style. Where they have one each, it must vary between clients, beyond what half of the columns do, and be
    something that a model would lean on.
    """
    given, _ = unscaled(sums)
    found = _variation(given, images, gaps)
    if images or found.directions or found.kept:
        return found
    compared: Source = "contexts" if float(given["within_freedom"]) >= 1 else "clients"
    return dataclasses.replace(found, compared=compared, style=_style(given, found.columns, compared))


def _variation(given: Params, images: bool, gaps: Mapping[int, int]) -> Variation:
    found, members = (given, []) if images else merge_levels(given)
    noise = found["noise"] / found["rows"].clamp(min=1)
    strength = _strength(found, noise)
    if float(found["within_freedom"]) >= 1:
        tests = [_between_contexts(found, noise), _within_clients(found, noise)]
        source: Source = "contexts"
        groups = tuple(Group(strength > least, alpha / len(tests)) for least, alpha in ALPHAS)
        tests = [dataclasses.replace(test, groups=groups) for test in tests]
    else:
        source = "clients"
        tests = [_between_clients(found, noise) if images else _columns_between_clients(found, noise)]
    chosen: list[int] = []
    for test in tests:
        if images:
            away = test.directions([], least=0)
            if source == "clients" and away and _lean(found, noise, away[0]) < LEANED_ON_AT_ALL:
                away = []
        else:
            picked, away = test.columns()
            chosen = sorted({*chosen, *(column for place in picked for column in members[place])})
        if away:
            if not images and len(members) < given["total"].numel():  # levels and mixtures do not go together
                continue
            mixtures = tuple(tuple(direction.tolist()) for direction in away)
            return _unless_all(Variation(source, directions=mixtures), found, noise, images)
    if not chosen:
        return Variation(None)
    chosen = sorted({*chosen, *(gaps[column] for column in chosen if column in gaps)})  # what fills a gap shows it too
    return _unless_all(Variation(source, tuple(chosen)), given, given["noise"] / given["rows"].clamp(min=1), images)


def _style(given: Params, without: tuple[int, ...], compared: Source) -> tuple[int, ...]:
    """The columns that stay, and would be left out if clients had one context each; if they have, those that would if a
    model leaned on them a little more."""
    found, members = merge_levels(given)
    least = None if compared == "contexts" else LEANED_ON
    picked, _ = _columns_between_clients(found, found["noise"] / found["rows"].clamp(min=1), least).columns()
    return tuple(sorted({column for place in picked for column in members[place]} - {*without}))


def find_answer(sums: Params, images: bool, classes: int = 2, between_clients: float | None = None) -> Answer | None:
    """Of columns that are answers of a model as it learns, the one that varies most, the earliest of about as much.

    None where none varies beyond chance. Of a table's clients with one context each, the answers differ by style.
    classes: where there are more than two, each sample is counted once for each. between_clients: how much a model must
    lean on what varies between clients alone.
    """
    found, noise = unscaled(sums)
    strength = _strength(found, noise)
    if float(found["within_freedom"]) >= 1:
        tests = [_between_contexts(found, noise), _within_clients(found, noise)]
        leaned_on = strength > LEANED_ON
    else:
        tests = [_between_clients(found, noise)] if images else []
        usual = ANSWERS_OF_SEVERAL if classes > 2 else LEANED_ON_BETWEEN_CLIENTS
        leaned_on = strength > (usual if between_clients is None else between_clients)
    inflation = one_by_one(classes)
    for test in (dataclasses.replace(test, inflation=inflation) for test in tests):
        each = torch.where(leaned_on, test.each(), 0.0).tolist()
        if test.stands_out(max(each), len(each), min(test.alpha, ALPHA) if classes > 2 else None):
            place = next(place for place, statistic in enumerate(each) if statistic >= NEARLY * max(each))
            return Answer(place, float(strength[place]))
    return None


def one_by_one(classes: int) -> float:
    """How much more slopes vary where each sample is counted once for each class than if those were single samples.

    Answers and labels of one sample add up to one: C / (C − 1). And a class is rare among all, while most of what
    varies is whether its own samples are named so: ((C − 1)² + 1) / (2 (C − 1)) where mistakes are rare.
    """
    others = classes - 1
    return classes / others * (others**2 + 1) / (2 * others) if classes > 2 else 1.0


def find_marks(sums: Params) -> list[int]:
    """Of columns that are cells of images, those that vary far more than half of all cells do: they bear a mark.

    Between clients, where most cells vary too, clients may differ by style, such as how their images are rotated, and
    cells vary for that: a mark varies ten times as far.
    """
    found, noise = unscaled(sums)
    if float(found["within_freedom"]) >= 1:
        tests = [_between_contexts(found, noise), _within_clients(found, noise)]
    else:
        tests = [dataclasses.replace(_between_clients(found, noise), alpha=ALPHA)]
    marked: set[int] = set()
    for test in tests:
        test = test.tempered(torch.zeros(noise.shape[-1], dtype=torch.bool))
        each, usual = test.each().tolist(), test.inflation * max(test.freedom, 1.0)
        one_style = len(tests) > 1 or test.inflation < MOST_STYLE
        marked |= {
            place
            for place, statistic in enumerate(each)
            if test.stands_out(statistic, len(each)) and (one_style or statistic > FAR_BEYOND * usual)
        }
    return sorted(marked)


def is_leaned_on(sums: Params) -> bool:
    """Whether a model would lean on one of the columns."""
    return bool((_strength(*unscaled(sums)) > LEANED_ON).any())


def _within_clients(found: Params, noise: Tensor) -> "SlopeTest":
    return SlopeTest(found["within"], noise, float(found["within_freedom"]), float(found["within_weight"]), ALPHA / 2)


def _between_contexts(found: Params, noise: Tensor) -> "SlopeTest":
    """Contexts of the same number, over all clients."""
    weight, common = found["context_weight"], found["context_slope"]  # [K, C, C], [K, C, d]
    total = weight.sum(0)
    slopes = inverse(weight) @ common - inverse(total) @ common.sum(0)
    free = float(freedom(weight).sum() - freedom(total))
    counts = float(spread_weight(total, (weight @ weight).sum(0)))
    return SlopeTest(weighed(slopes, weight, noise.ndim == 2), noise, free, counts, ALPHA / 2)


def _between_clients(found: Params, noise: Tensor) -> "SlopeTest":
    weight = found["weight"]
    squares = found["square"] - weighed(class_slopes(found)[None], weight[None], noise.ndim == 2)
    free = float(found["freedom"] - freedom(weight))
    counts = float(spread_weight(weight, found["weight_square"] / SCALE))
    return SlopeTest(squares, noise, free, counts, CLIENT_ALPHA)


def _columns_between_clients(found: Params, noise: Tensor, least: float | None = None) -> "SlopeTest":
    """Of those above all that a model leans on."""
    if least is None:
        least = LEANED_ON_BETWEEN_CLIENTS if len(found["slope"]) == 1 else LEANED_ON_OF_SEVERAL
    return _between_clients(found, noise).tempered(_strength(found, noise) > least)


def _lean(found: Params, noise: Tensor, direction: Tensor) -> float:
    """How far the classes lie apart along what reads a direction best, in standard deviations."""
    reads = torch.linalg.pinv(noise, hermitian=True, rtol=1e-6) @ direction
    return float(distance(class_slopes(found) @ reads) / (reads @ noise @ reads).clamp(min=1e-12).sqrt())


def _strength(found: Params, noise: Tensor) -> Tensor:
    """[d] how far the classes lie apart in each column, in standard deviations."""
    scale = (noise.diagonal() if noise.ndim == 2 else noise).clamp(min=1e-12).sqrt()
    return distance(class_slopes(found)) / scale


def _unless_all(variation: Variation, found: Params, noise: Tensor, images: bool) -> Variation:
    """What was found, unless what is left of a table would no longer tell the label."""
    if images:
        return variation
    glass = variation.glass(noise.shape[-1])
    left = int(torch.linalg.matrix_rank(glass))
    if noise.ndim == 1:
        statistic = float((glass.diagonal() * found["square"] / noise.clamp(min=1e-12)).sum())
    else:
        inverse = torch.linalg.pinv(glass @ noise @ glass.T, hermitian=True, rtol=1e-6)
        statistic = float((inverse @ glass @ found["square"] @ glass.T).trace())
    if chance(statistic, left * float(found["freedom"])) < ALPHA:  # at some client at least
        return variation
    return Variation(variation.source, kept=True)
