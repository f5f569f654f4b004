"""Shortcut columns of a table: those on which the model leans AND whose relation with the label differs between
contexts. Either alone is no shortcut: a cause may matter much, and an ignored column may do as it likes."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.data.federation import Task
from perinvfl.diagnose import measures
from perinvfl.learning import risks
from perinvfl.models import Model

REPEATS = 5
LEAST_SHARE = 0.05  # of all that shuffling costs, for a column to count as leaned on
LEAST_SPREAD = 0.2  # between the largest and the smallest correlation
MOST_CHANCE = 0.01  # over all columns together, of calling a difference what is none
LEAST_SAMPLES = 10  # for a context to be compared


@dataclass(frozen=True)
class Samples:
    """One client's samples in one context."""

    context: str
    seen: bool  # a context of its training
    x: Tensor
    y: Tensor
    familiar: bool = False  # not trained on, but from the contexts of its training


@dataclass(frozen=True)
class Column:
    name: str
    rise: float  # of the risk when the column is shuffled within each context of training, mean over them
    share: float  # of the rises of all columns
    relation: dict[str, float]  # context -> correlation with the label, or with the class where it differs most
    spread: float
    chance: float  # of such a spread if the relation were the same everywhere
    leans: bool
    differs: bool
    of_class: str = ""  # that class, where there are more than two

    @property
    def shortcut(self) -> bool:
        return self.leans and self.differs


def look_at_columns(
    task: Task,
    model: Model,
    params: Params,
    parts: list[Samples],
    names: list[str],
    classes: Sequence[str],
    source: torch.Generator,
) -> list[Column]:
    """Every column, those on which the model leans most first."""

    def risk_of(part: Samples) -> Callable[[Tensor], float]:
        return lambda x: float(risks.losses(task, model.apply(params, x), part.y).mean())

    # Only where it was trained: in a context where a shortcut misleads, shuffling it helps, which would hide it.
    seen = [part for part in parts if part.seen]
    rises, steady = [], []
    for column in range(len(names)):
        runs = [measures.rise_when_shuffled(risk_of(part), part.x, column, REPEATS, source) for part in seen]
        by_repeat = [statistics.fmean(over_contexts) for over_contexts in zip(*runs, strict=True)]
        rises.append(statistics.fmean(by_repeat))
        steady.append(rises[-1] > 2 * statistics.stdev(by_repeat))
    total = sum(rise for rise in rises if rise > 0) or 1.0
    found = []
    for column, name in enumerate(names):
        relation, spread, chance, label = relations(task, parts, column)
        of_class = "" if label is None else classes[label]
        share = max(0.0, rises[column]) / total
        differs = spread >= LEAST_SPREAD and chance * len(names) < MOST_CHANCE
        leans = steady[column] and share >= LEAST_SHARE
        found.append(Column(name, rises[column], share, relation, spread, chance, leans, differs, of_class))
    return sorted(found, key=lambda column: -column.rise)


def relations(task: Task, parts: list[Samples], column: int) -> tuple[dict[str, float], float, float, int | None]:
    """Correlation of a column with the label by context, its spread, and the chance of such a spread.

    Of several classes, the one whose share the column tells most differently, which is the last answer; the chance is
    then taken times their number.
    """
    usable = [part for part in parts if len(part.y) >= LEAST_SAMPLES and float(part.x[:, column].std()) > 0]
    classes = _targets(task, usable)
    best: tuple[dict[str, float], float, float, int | None] = ({}, 0.0, 1.0, None)
    for label in classes:
        by_context = {
            part.context: measures.correlation(part.x[:, column], part.y if label is None else (part.y == label))
            for part in usable
        }
        if len(by_context) < 2:
            return by_context, 0.0, 1.0, label
        spread = max(by_context.values()) - min(by_context.values())
        if spread >= best[1]:
            chance = measures.heterogeneity(list(by_context.values()), [len(part.y) for part in usable])
            best = (by_context, spread, min(1.0, chance * len(classes)), label)
    return best


def _targets(task: Task, parts: list[Samples]) -> Sequence[int | None]:
    if task != "multiclass":
        return [None]
    return sorted({int(label) for part in parts for label in part.y.unique()})
