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
from perinvfl.learning.slopes import ROUNDED, SCALE, squared, unscaled

ALPHA = 0.003  # how often nothing at all would look like this
# The same between contexts, of columns in which the classes lie at least so many standard deviations apart: the more a
# model would lean on a column, the more is lost if it varies and is not found.
ALPHAS = (2.0, 0.05), (1.5, 0.02), (1.0, 0.01)
CLIENT_ALPHA = 0.05  # the same between clients, where what half of the columns show counts as nothing
# Differences of class means, in standard deviations, that a model leans on. Between clients columns that have them are
# looked at alone, since weak ones differ by style as well.
LEANED_ON, LEANED_ON_BETWEEN_CLIENTS = 1.0, 1.5
LEANED_ON_AT_ALL = 0.5  # of the colours of images
SURE = 1e-4  # times as likely: no doubt
REPEATED = 0.8  # of a column's variance within a class
NEARLY = 0.8  # of the largest statistic counts as much
SMALLEST = 0.1  # change of a slope, in standard deviations within a class, that is worth acting on

MOST_STYLE = 1.5  # times chance: how far half of the cells of images may vary between clients that have one style
NO_GAPS: Mapping[int, int] = MappingProxyType({})
Source = Literal["contexts", "clients"]


@dataclass(frozen=True)
class Variation:
    """What was found to change its meaning."""

    source: Source | None  # seen between contexts of a client, between clients, or nowhere
    columns: tuple[int, ...] = ()  # that are to be left out
    directions: tuple[tuple[float, ...], ...] = ()  # or mixtures of columns that are to be taken away
    kept: bool = False  # it was found, but nothing else tells the label: nothing is taken away

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
    found, members = (given, []) if images else merge_levels(given)
    noise = found["noise"] / found["rows"].clamp(min=1)
    strength = _strength(found, noise)
    if float(found["within_freedom"]) >= 1:
        tests = [_between_contexts(found, noise), _within_clients(found, noise)]
        source: Source = "contexts"
        groups = tuple(Group(strength > least, alpha / len(tests)) for least, alpha in ALPHAS)
        tests = [dataclasses.replace(test, groups=groups) for test in tests]
    else:
        tests, source = [_between_clients(found, noise)], "clients"
        if not images:
            tests = [test.tempered(strength > LEANED_ON_BETWEEN_CLIENTS) for test in tests]
    chosen: list[int] = []
    for test in tests:
        if images:
            away = test.directions([])
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


def find_answer(
    sums: Params, images: bool, classes: int = 2, between_clients: float = LEANED_ON_BETWEEN_CLIENTS
) -> Answer | None:
    """Of columns that are answers of a model as it learns, the one that varies most, the earliest of about as much.

    None where none varies beyond chance. Of a table's clients with one context each, the answers differ by style.
    classes: where there are more than two, each sample is counted once for each. Answers and labels of one sample then
    add up to one, so that sums vary by C / (C − 1) more than as many single samples would. between_clients: how much a
    model must lean on what varies between clients alone.
    """
    found, noise = unscaled(sums)
    strength = _strength(found, noise)
    if float(found["within_freedom"]) >= 1:
        tests = [_between_contexts(found, noise), _within_clients(found, noise)]
        leaned_on = strength > LEANED_ON
    else:
        tests = [_between_clients(found, noise)] if images else []
        leaned_on = strength > between_clients
    inflation = classes / (classes - 1) if classes > 2 else 1.0
    for test in (dataclasses.replace(test, inflation=inflation) for test in tests):
        each = torch.where(leaned_on, test.each(), 0.0).tolist()
        if test.stands_out(max(each), len(each)):
            place = next(place for place, statistic in enumerate(each) if statistic >= NEARLY * max(each))
            return Answer(place, float(strength[place]))
    return None


def find_marks(sums: Params) -> list[int]:
    """Of columns that are cells of images, those that vary far more than half of all cells do: they bear a mark.

    Between clients only where most cells do not vary at all: else clients differ by style, such as how their images are
    rotated, and cells vary for that.
    """
    found, noise = unscaled(sums)
    if float(found["within_freedom"]) >= 1:
        tests = [_between_contexts(found, noise), _within_clients(found, noise)]
    else:
        tests = [dataclasses.replace(_between_clients(found, noise), alpha=ALPHA)]
    marked: set[int] = set()
    for test in tests:
        test = test.tempered(torch.zeros(noise.shape[-1], dtype=torch.bool))
        each = test.each().tolist()
        if len(tests) > 1 or test.inflation < MOST_STYLE:
            marked |= {place for place, statistic in enumerate(each) if test.stands_out(statistic, len(each))}
    return sorted(marked)


def is_leaned_on(sums: Params) -> bool:
    """Whether a model would lean on one of the columns."""
    return bool((_strength(*unscaled(sums)) > LEANED_ON).any())


def _within_clients(found: Params, noise: Tensor) -> "_Test":
    return _Test(found["within"], noise, float(found["within_freedom"]), float(found["within_weight"]), ALPHA / 2)


def _between_contexts(found: Params, noise: Tensor) -> "_Test":
    """Contexts of the same number, over all clients."""
    weight = found["context_weight"]  # [K, C]
    slopes = found["context_slope"] / weight.clamp(min=1e-9)[..., None]
    total = weight.sum(0)
    mean = found["context_slope"].sum(0) / total.clamp(min=1e-9)[:, None]
    spread = ((slopes - mean) * weight.sqrt()[..., None]).flatten(0, 1)
    freedom = ((weight > 1e-9).sum(0) - 1).clamp(min=0).sum()
    counts = (total - weight.square().sum(0) / total.clamp(min=1e-9)).sum()
    return _Test(squared(spread, noise.ndim == 2), noise, float(freedom), float(counts), ALPHA / 2)


def _between_clients(found: Params, noise: Tensor) -> "_Test":
    weight = found["weight"].clamp(min=1e-9)
    common = found["slope"] / weight.sqrt()[:, None]
    squares = found["square"] - squared(common, noise.ndim == 2)
    freedom = float((found["clients"] - 1).clamp(min=0).sum())
    counts = float((weight - found["weight_square"] / SCALE / weight).sum())
    return _Test(squares, noise, freedom, counts, CLIENT_ALPHA)


def _lean(found: Params, noise: Tensor, direction: Tensor) -> float:
    """How far the classes lie apart along what reads a direction best, in standard deviations."""
    reads = torch.linalg.pinv(noise, hermitian=True, rtol=1e-6) @ direction
    slopes = found["slope"] / found["weight"].clamp(min=1e-9)[:, None]
    return float((slopes @ reads).abs().max() / (reads @ noise @ reads).clamp(min=1e-12).sqrt())


def _strength(found: Params, noise: Tensor) -> Tensor:
    """[d] how far the classes lie apart in each column, in standard deviations."""
    scale = (noise.diagonal() if noise.ndim == 2 else noise).clamp(min=1e-12).sqrt()
    return (found["slope"] / found["weight"].clamp(min=1e-9)[:, None]).abs().amax(0) / scale


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
    if chance(statistic, left * float(found["clients"].sum())) < ALPHA:  # at some client at least
        return variation
    return Variation(variation.source, kept=True)


def chance(statistic: float, freedom: float) -> float:
    """How often a chi-square of so many degrees of freedom is as large."""
    if freedom <= 0:
        return 1.0
    half = torch.tensor([freedom / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _root(noise: Tensor) -> Tensor:
    """[d, d] the Cholesky factor. Sums are sent in float32, so that of columns that say the same thing the noise may
    have a variance a little below zero: then of a noise that is a little larger."""
    eye = noise.trace() * torch.eye(len(noise), dtype=torch.float64)
    root, failed = torch.linalg.cholesky_ex(noise + 1e-9 * eye)
    return torch.linalg.cholesky(noise + 2 * ROUNDED * eye) if int(failed) else root


class Group(NamedTuple):
    """Columns that are tested together."""

    columns: Tensor  # [d] which these are
    alpha: float  # how often one of them would stand out by chance


@dataclass(frozen=True)
class _Test:
    """Do slopes vary beyond noise? Sums of squares of slopes against the noise within a class."""

    squares: Tensor  # [d, d], or [d] where columns are looked at one by one
    noise: Tensor  # likewise
    freedom: float
    weight: float  # by which a variance of slopes counts in `squares`
    alpha: float
    inflation: float = 1.0  # of what counts as noise
    groups: tuple[Group, ...] = ()  # to look at before the others, so that few tests need little correction
    alone: bool = False  # and others only where there is no doubt

    def tempered(self, columns: Tensor) -> "_Test":
        """Of these columns above all, with the variation that half of the others show counted as noise."""
        others = self.each()[~columns] if bool((~columns).any()) else self.each()
        ratio = torch.quantile(others / max(self.freedom, 1.0), 0.5)
        groups = (Group(columns, self.alpha),)
        return dataclasses.replace(self, inflation=max(1.0, float(ratio)), groups=groups, alone=True)

    def each(self) -> Tensor:
        """[d] chi-square of each column."""
        squares, noise = (part.diagonal() if part.ndim == 2 else part for part in (self.squares, self.noise))
        return squares / noise.clamp(min=1e-12)

    def size(self, statistic: float, columns: int = 1) -> float:
        """How far slopes vary, in standard deviations within a class."""
        return (max(statistic - columns * self.freedom, 0.0) / max(self.weight, 1e-9)) ** 0.5

    def columns(self) -> tuple[list[int], list[Tensor]]:
        """The columns that vary; or mixtures of columns, where no few columns account for it."""
        each, d = self.each(), self.noise.shape[-1]
        chosen: list[int] = []
        while True:
            rest = [j for j in range(d) if j not in chosen]
            alone = [j for j in rest if self._stands_out(j, float(each[j]), rest)]
            more = alone or self.together(rest)
            if not more:
                return chosen + self.repeats(chosen, rest), []
            if not alone and len(more) > len(rest) / 2:
                return [], self.directions(chosen)
            chosen += more

    def repeats(self, chosen: list[int], rest: list[int]) -> list[int]:
        """Columns that say what the chosen ones say, such as the last level of a category."""
        if not chosen or not rest or self.noise.ndim == 1:
            return []
        a, b = torch.tensor(chosen), torch.tensor(rest)
        inverse = torch.linalg.pinv(self.noise[a][:, a], hermitian=True, rtol=1e-6)
        explained = (self.noise[b][:, a] @ inverse * self.noise[b][:, a]).sum(1)
        share = explained / self.noise.diagonal()[b].clamp(min=1e-12)
        return [j for j, part in zip(rest, share.tolist(), strict=True) if part > REPEATED]

    def _stands_out(self, column: int, statistic: float, among: list[int]) -> bool:
        for columns, alpha in self.groups:
            tests = sum(bool(columns[j]) for j in among)
            if bool(columns[column]) and self.stands_out(statistic, tests, alpha):
                return True
        return self.stands_out(statistic, len(among) / (SURE if self.alone else 1.0))

    def stands_out(self, statistic: float, tests: float, alpha: float | None = None) -> bool:
        likely = chance(statistic / self.inflation, self.freedom) * tests
        return likely < (self.alpha if alpha is None else alpha) and self.size(statistic) > SMALLEST

    def together(self, rest: list[int]) -> list[int]:
        """The fewest of these columns that vary together, where no single one does."""
        if self.noise.ndim == 1 or not self._varies(rest):
            return []
        left = list(rest)
        while len(left) > 1:
            whole = self.joint(left)
            losses = [(whole - self.joint([k for k in left if k != j]), j) for j in left]
            loss, weakest = min(losses)
            if chance(loss / self.inflation, self.freedom) < self.alpha:
                break
            left.remove(weakest)
        return left

    def joint(self, columns: list[int]) -> float:
        part = torch.tensor(columns)
        noise, squares = self.noise[part][:, part], self.squares[part][:, part]
        return float((torch.linalg.pinv(noise, hermitian=True, rtol=1e-6) @ squares).trace())

    def _varies(self, columns: list[int]) -> bool:
        if not columns:
            return False
        statistic = self.joint(columns)
        likely = chance(statistic / self.inflation, self.freedom * len(columns)) / (SURE if self.alone else 1.0)
        return likely < self.alpha and self.size(statistic, len(columns)) > SMALLEST

    def directions(self, without: list[int]) -> list[Tensor]:
        """[d] each: mixtures of columns that vary, the strongest first, until the rest does not."""
        d = self.noise.shape[-1]
        basis = torch.eye(d, dtype=torch.float64)[:, [j for j in range(d) if j not in without]]
        found = [torch.eye(d, dtype=torch.float64)[j] for j in without]
        if self.noise.ndim == 1:
            return found
        while basis.shape[1] > 1:
            noise, squares = basis.T @ self.noise @ basis, basis.T @ self.squares @ basis
            part = dataclasses.replace(self, squares=squares, noise=noise)
            if not part._varies(list(range(basis.shape[1]))):
                break
            root = _root(noise)
            inverse = torch.linalg.inv(root)
            vectors = torch.linalg.eigh(inverse @ squares @ inverse.T).eigenvectors
            away = root @ vectors[:, -1]  # in coordinates of the basis
            found.append(basis @ away / away.norm())
            basis = basis @ torch.linalg.svd(away[None], full_matrices=True).Vh[1:].T
        return found
