"""Which rows train, and which only test."""

from dataclasses import dataclass

import torch
from torch import Tensor

from perinvfl.core.config import suggest
from perinvfl.core.hyper import hyper
from perinvfl.core.naming import name_of, one_spelling
from perinvfl.core.seeding import generator
from perinvfl.data.own.fitting import Statistics
from perinvfl.data.own.rows import Rows
from perinvfl.errors import UserError


@dataclass(frozen=True)
class Division:
    """Which rows train, and which only test."""

    test_contexts: tuple[str | int, ...] = hyper(
        (), "contexts held out: the out-of-distribution tests; their rows never train"
    )
    leave_one_context_out: bool = hyper(
        False, "one run for each context (each of test_contexts, if any), with that context held out"
    )
    test_share: float = hyper(
        0.2, "share of a client's rows in every other context that only test, in distribution", least=0, most=0.9
    )
    holdout: float = hyper(0.1, "share of them kept out of training, for validation", least=0, most=0.9)
    standardise: bool = hyper(
        True, "take the mean off every feature (and a regression's label) and divide by the deviation, both of training"
    )
    statistics: Statistics = hyper(
        "exact",
        "means, scales, medians and levels: of all training rows, or from sums over clients as sites send them",
        later=True,
    )
    mean: tuple[float, ...] = hyper(
        (), "what to take off each feature instead; all sites of a federation give the same"
    )
    scale: tuple[float, ...] = hyper((), "and what to divide it by", above=0)
    label_mean: float = hyper(0.0, "what to take off a regression's label, where label_scale is given")
    label_scale: float = hyper(0.0, "and what to divide it by; 0: both as in training", least=0)

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
            raise UserError(f"{where}.mean and scale must have one entry a feature, both of them.")
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
    for client, client_name in enumerate(rows.clients):
        for context, context_name in enumerate(rows.contexts):
            mine = (inside & (rows.client == client) & (rows.context == context)).nonzero().flatten()
            drawn = mine[torch.randperm(len(mine), generator=generator(seed, "file", client_name, context_name))]
            test, valid = int(len(mine) * division.test_share), int(len(mine) * division.holdout)
            testing[drawn[:test]] = True
            validating[drawn[test : test + valid]] = True
    return inside & ~testing & ~validating, testing, validating


def _check_training(rows: Rows, training: Tensor, division: Division) -> None:
    for client, name in enumerate(rows.clients):
        if not bool((training & (rows.client == client)).any()):
            contexts = [rows.contexts[c] for c in rows.context[rows.client == client].unique().tolist()]
            raise UserError(
                f'Client "{name}" has rows in {", ".join(contexts)} alone, so nothing to train on once '
                f"{', '.join(division.held_out)} is held out; hold out another context, or leave the client aside "
                f'with data.exclude_clients = ["{name}"].'
            )
    if rows.task != "regression" and rows.y[training].unique().numel() < 2:
        raise UserError("All training rows have the same label, so there is nothing to learn; hold out less.")
