"""A chi-square test of slopes: do columns relate to the label differently from context to context, beyond noise?"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from perinvfl.learning.slopes import ROUNDED

SURE = 1e-4  # times as likely: no doubt
REPEATED = 0.8  # of a column's variance within a class
SMALLEST = 0.1  # change of a slope, in standard deviations within a class, that is worth acting on


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
class SlopeTest:
    """Do slopes vary beyond noise? Sums of squares of slopes against the noise within a class."""

    squares: Tensor  # [d, d], or [d] where columns are looked at one by one
    noise: Tensor  # likewise
    freedom: float
    weight: float  # by which a variance of slopes counts in `squares`
    alpha: float
    inflation: float = 1.0  # of what counts as noise
    groups: tuple[Group, ...] = ()  # to look at before the others, so that few tests need little correction
    alone: bool = False  # and others only where there is no doubt

    def tempered(self, columns: Tensor) -> "SlopeTest":
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

    def directions(self, without: list[int], least: int = 1) -> list[Tensor]:
        """[d] each: mixtures of columns that vary, the strongest first, until the rest does not or so few are left."""
        d = self.noise.shape[-1]
        basis = torch.eye(d, dtype=torch.float64)[:, [j for j in range(d) if j not in without]]
        found = [torch.eye(d, dtype=torch.float64)[j] for j in without]
        if self.noise.ndim == 1:
            return found
        while basis.shape[1] > least:
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
