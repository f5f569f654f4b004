"""Which rows train, and which only test."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.core.config import suggest
from perinvfl.core.hyper import hyper
from perinvfl.core.mapped import is_mapped, let_go, mapped_zeros
from perinvfl.core.naming import name_of, one_spelling
from perinvfl.core.seeding import generator
from perinvfl.data.federation import Split
from perinvfl.data.own.fitting import Statistics
from perinvfl.data.own.rows import Rows
from perinvfl.errors import UserError

LET_GO_AFTER = 1000  # clients


@dataclass(frozen=True)
class Division:
    """Which rows train, and which only test."""

    test_contexts: tuple[str | int, ...] = hyper(
        (),
        "contexts to hold out: their rows are never trained on and show what happens under shift, such as in "
        "a later year; empty holds none out, so that no table can show a shift",
    )
    leave_one_context_out: bool = hyper(
        False,
        "make one run for each context (or each of test_contexts) with that context held out, so that the "
        "result does not hang on a single one; false makes one run with all test_contexts held out",
    )
    test_share: float = hyper(
        0.2,
        "share of the rows of the other contexts kept for testing without shift, to compare with; 0.2 keeps "
        "every fifth",
        least=0,
        most=0.9,
    )
    holdout: float = hyper(
        0.1,
        "share of the rows of the other contexts that is neither trained nor tested on, so that settings can "
        "be chosen by them; 0.1 keeps every tenth",
        least=0,
        most=0.9,
    )
    standardise: bool = hyper(
        True,
        "bring every column (and a regression's label) to mean 0 and standard deviation 1 over the training "
        "rows, so that columns of large numbers do not dominate; false uses the numbers as they are",
    )
    statistics: Statistics = hyper(
        "exact",
        "how means, scales, medians and levels are computed: exact, the default, from all training rows; "
        "summed from sums over clients, as sites of a deployment do, which gives the same numbers as a "
        "deployment",
        later=True,
    )
    mean: tuple[float, ...] = hyper(
        (),
        "numbers to subtract from the columns instead of the training means, where all sites agreed on them; "
        "empty computes the means",
    )
    scale: tuple[float, ...] = hyper(
        (),
        "numbers to divide the columns by instead of the training standard deviations, one for each entry of "
        "mean; empty computes them",
        above=0,
    )
    label_mean: float = hyper(
        0.0,
        "number to subtract from a regression's label, where all sites agreed on one; used only if "
        "label_scale is given",
    )
    label_scale: float = hyper(
        0.0,
        "number to divide a regression's label by, where all sites agreed on one; 0 computes it and the mean "
        "from training rows",
        least=0,
    )

    def __post_init__(self) -> None:
        # The folds of leave-one-context-out have always been called by texts.
        object.__setattr__(self, "test_contexts", one_spelling(self.test_contexts, self.leave_one_context_out))

    def check(self, where: str) -> None:
        if self.test_share + self.holdout >= 1:
            raise UserError(
                f"{where}.test_share = {self.test_share:g} and holdout = {self.holdout:g} leave nothing to train on; "
                "together they must be less than 1."
            )
        if len(self.mean) != len(self.scale):
            raise UserError(f"{where}.mean and scale must have one entry per feature, both of them.")
        if len(set(self.test_contexts)) < len(self.test_contexts):
            raise UserError(f"{where}.test_contexts = {list(self.test_contexts)}: no context may be named twice.")

    @property
    def held_out(self) -> tuple[str, ...]:
        return tuple(map(name_of, self.test_contexts))


def divide(rows: Rows, division: Division, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """[n] bool each: rows that train, that test in distribution, that validate; refuses what leaves too few."""
    division.check("data")
    for context in division.held_out:
        if context not in rows.contexts:
            raise UserError(
                f'data.test_contexts names "{context}", no context of these data{suggest(context, list(rows.contexts))}'
            )
    outside = torch.tensor([name in division.held_out for name in rows.contexts])[rows.context]  # [n]
    training, testing, validating = _shares(rows, ~outside, division, seed)
    _check_training(rows, training, division)
    return training, testing, validating


def _shares(rows: Rows, inside: Tensor, division: Division, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """[n] bool each: rows that train, that test in distribution, that validate.

    Drawn within each context of each client, by their names: another client in the file changes nothing for this one.
    """
    testing, validating = torch.zeros_like(inside), torch.zeros_like(inside)
    group = rows.client * len(rows.contexts) + rows.context
    for number, mine in _by_group(torch.where(inside, group, -1)):
        names = rows.clients[number // len(rows.contexts)], rows.contexts[number % len(rows.contexts)]
        drawn = mine[torch.randperm(len(mine), generator=generator(seed, "file", *names))]
        test, valid = int(len(mine) * division.test_share), int(len(mine) * division.holdout)
        testing[drawn[:test]] = True
        validating[drawn[test : test + valid]] = True
    return inside & ~testing & ~validating, testing, validating


def _by_group(group: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each group's number, and its rows in order; the group -1 is left out. Sorted once, however many groups."""
    ordered, places = group.sort(stable=True)
    numbers, counts = ordered.unique_consecutive(return_counts=True)
    for number, mine in zip(numbers.tolist(), places.split(counts.tolist()), strict=True):
        if number >= 0:
            yield number, mine


def split_rows(rows: Rows, chosen: Tensor, number: Tensor) -> Split:
    """The chosen rows by client, padded to the same length; `number` gives each context its number.

    Where the rows lie in a file, so does the split.
    """
    clients = len(rows.clients)
    longest = int(torch.bincount(rows.client[chosen], minlength=clients).max())
    shape = (clients, longest, *rows.x.shape[1:])
    mapped = is_mapped(rows.x)
    x = mapped_zeros(shape) if mapped else torch.zeros(*shape)
    y = torch.zeros(clients, longest, dtype=torch.int64 if rows.task == "multiclass" else torch.float32)
    context = torch.full((clients, longest), -1)
    for client, mine in _by_group(torch.where(chosen, rows.client, -1)):
        x[client, : len(mine)] = rows.x[mine].float()
        y[client, : len(mine)] = rows.y[mine].to(y.dtype)
        context[client, : len(mine)] = number[rows.context[mine]]
        if mapped and client % LET_GO_AFTER == 0:
            let_go()
    return Split(x, y, context)


def _check_training(rows: Rows, training: Tensor, division: Division) -> None:
    trained = torch.bincount(rows.client[training], minlength=len(rows.clients))
    gone = f"{', '.join(division.held_out)} {'is' if len(division.held_out) == 1 else 'are'} held out"
    if division.held_out and not trained.any():
        raise UserError(f"Nothing is left to train on once {gone}; name fewer contexts in data.test_contexts.")
    for client in (trained == 0).nonzero().flatten().tolist():
        name = rows.clients[client]
        contexts = [rows.contexts[c] for c in rows.context[rows.client == client].unique().tolist()]
        raise UserError(
            f'Client "{name}" has rows only in {", ".join(contexts)}, so nothing to train on once {gone}; hold out '
            f'another context, or leave the client aside with data.exclude_clients = ["{name}"].'
        )
    if rows.task != "regression" and rows.y[training].unique().numel() < 2:
        raise UserError("All training rows have the same label, so there is nothing to learn; hold out less.")
