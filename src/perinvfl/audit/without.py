"""What happens to a model without a column: linear models with and without it, tested on rows that they did not see.

Four tests: rows held out at random from every context of every site; each context left out in turn; each site left out
in turn; and the contexts that the user holds out, which nothing else in an audit looks at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from perinvfl.audit import linear
from perinvfl.audit.meaning import WIDTH
from perinvfl.audit.table import Table
from perinvfl.core.seeding import generator

ROWS, CONTEXTS, SITES, HELD_OUT = "rows", "contexts", "sites", "held out"
FOLDS = 5
MOST_FOLDS = 10  # of more contexts or sites, several are left out together


@dataclass(frozen=True)
class Variant:
    """A model to try: without some columns of x, or with others in the place of some."""

    without: tuple[int, ...] = ()
    changed: dict[int, Tensor] = field(default_factory=dict)  # [n] each

    def inputs(self, x: Tensor) -> Tensor:
        if self.changed:
            x = torch.stack([self.changed.get(j, x[:, j]) for j in range(x.shape[1])], 1)
        return x[:, self._kept(x.shape[1])]

    def weights_left(self, weights: Tensor) -> Tensor:
        """[C, d + 1] of the model with all columns, less those that it is without."""
        return weights[:, self._kept(weights.shape[1])]

    def _kept(self, d: int) -> list[int]:
        return [j for j in range(d) if j not in self.without]


@dataclass(frozen=True)
class Change:
    """Of a score, in its own unit (shares of rows; the squared error of a regression, with its sign turned)."""

    mean: float
    low: float
    high: float

    @property
    def worse(self) -> bool:
        return self.high < 0

    @property
    def better(self) -> bool:
        return self.low > 0


@dataclass(frozen=True)
class Score:
    """Of one model in one test: the share of right answers (minus the mean squared error of a regression)."""

    mean: float
    low: float
    high: float
    by_fold: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Tested:
    """One test: the model with all columns, a constant answer, and models without some columns."""

    rows: int
    folds: int
    full: Score
    constant: Score
    variants: dict[str, Score]
    changes: dict[str, Change]  # of each variant against the model with all columns, row by row


@dataclass(frozen=True)
class _Fold:
    name: str
    train: Tensor  # [n] bool
    test: Tensor


def try_variants(table: Table, variants: dict[str, Variant]) -> dict[str, Tested]:
    """Every variant in every test that the data allow."""
    found = {}
    for name, folds in all_folds(table).items():
        if folds:
            found[name] = _tested(table, folds, variants)
    return found


def all_folds(table: Table) -> dict[str, list[_Fold]]:
    seen = ~table.held
    return {
        ROWS: _row_folds(table),
        CONTEXTS: _group_folds(table.context, table.contexts, seen),
        SITES: _group_folds(table.client, table.clients, seen),
        HELD_OUT: [
            _Fold(table.contexts[number], seen, table.held & (table.context == number))
            for number in table.context[table.held].unique().tolist()
        ],
    }


def _row_folds(table: Table) -> list[_Fold]:
    fold = torch.full((len(table.y),), -1)
    source = generator(0, "audit", "folds")
    cells = table.client * len(table.contexts) + table.context
    for cell in cells[~table.held].unique().tolist():
        mine = (cells == cell).nonzero().flatten()
        fold[mine[torch.randperm(len(mine), generator=source)]] = torch.arange(len(mine)) % FOLDS
    return [_Fold(f"part {k + 1}", (fold >= 0) & (fold != k), fold == k) for k in range(FOLDS)]


def _group_folds(group: Tensor, names: Sequence[str], seen: Tensor) -> list[_Fold]:
    present = group[seen].unique().tolist()
    if len(present) < 2:
        return []
    together = [present[k::MOST_FOLDS] for k in range(min(MOST_FOLDS, len(present)))]
    folds = []
    for numbers in together:
        mine = torch.isin(group, torch.tensor(numbers))
        folds.append(_Fold(", ".join(names[number] for number in numbers), seen & ~mine, seen & mine))
    return folds


def _tested(table: Table, folds: list[_Fold], variants: dict[str, Variant]) -> Tested:
    n = len(table.y)
    x = {name: variant.inputs(table.x) for name, variant in [("", Variant()), *variants.items()]}
    known = torch.zeros(n, dtype=torch.bool)
    right = {name: torch.zeros(n, dtype=torch.float64) for name in ("", "constant", *variants)}
    places: dict[str, Tensor] = {}
    used = 0
    for fold in folds:
        y = table.y[fold.train]
        if table.task != "regression" and len(y.unique()) < 2:
            continue  # nothing to learn from
        used += 1
        known |= fold.test
        places[fold.name] = fold.test
        constant = y.mean() if table.task == "regression" else y.mode().values
        answer = torch.full((int(fold.test.sum()),), float(constant), dtype=torch.float64)
        right["constant"][fold.test] = linear.rights(answer, table.y[fold.test], table.task)
        full: Tensor | None = None
        for name, inputs in x.items():
            mean, scale = _standard(inputs[fold.train])
            start = full if full is None else variants[name].weights_left(full)
            weights = linear.fit((inputs[fold.train] - mean) / scale, y, table.task, len(table.classes), start)
            full = weights if full is None else full
            score = linear.scores(weights, (inputs[fold.test] - mean) / scale, table.task)
            right[name][fold.test] = linear.rights(score, table.y[fold.test], table.task)
    made = {name: _score(values, known, places) for name, values in right.items()}
    changes = {name: _change(right[name][known] - right[""][known]) for name in variants}
    return Tested(int(known.sum()), used, made[""], made["constant"], {name: made[name] for name in variants}, changes)


def _standard(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.std(0, correction=0)
    return x.mean(0), torch.where(scale > 1e-9, scale, 1.0)


def _change(difference: Tensor) -> Change:
    return Change(*_interval(difference))


def _score(right: Tensor, known: Tensor, places: dict[str, Tensor]) -> Score:
    by_fold = {name: float(right[place].mean()) for name, place in places.items()}
    return Score(*_interval(right[known]), by_fold)


def _interval(values: Tensor) -> tuple[float, float, float]:
    """The mean over rows, and 95 % around it."""
    mean = float(values.mean())
    error = float(values.std(correction=0)) / math.sqrt(max(len(values), 1))
    return mean, mean - WIDTH * error, mean + WIDTH * error
