"""Rows that belong to nobody, dealt out to clients: `data.partition`."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch

from perinvfl.core.hyper import hyper
from perinvfl.data.own.rows import Rows
from perinvfl.data.partition import Dealing, deal
from perinvfl.errors import UserError

BY_CLASS = ("dirichlet", "pathological")


@dataclass(frozen=True)
class RowDealing(Dealing):
    """Whether and how the rows of a file are dealt out."""

    partition: Literal["", "even", "dirichlet", "pathological", "similarity"] = hyper(
        "",
        "divide the rows among made-up clients by their labels, to try out methods where no column names a "
        "client: even divides at random, dirichlet gives unequal shares of each class, pathological a few "
        'classes each, similarity mostly rows sorted by label; "" leaves the rows as they are',
        later=True,
    )
    partition_clients: int = hyper(
        10,
        "number of made-up clients among which partition divides the rows; with more, each has fewer; used "
        "only with partition",
        symbol="N",
        least=1,
        later=True,
    )


def dealt(rows: Rows, how: RowDealing, seed: int) -> Rows:
    """The rows of clients numbered from 1, or as they are where no partition is asked for."""
    if not how.partition:
        return rows
    if len(rows.clients) > 1:
        raise UserError(
            f'data.partition = "{how.partition}" deals rows out to clients, and these are of {len(rows.clients)} '
            'clients already; set data.client = "" and leave that column out with data.ignore.'
        )
    if rows.task == "regression" and how.partition in BY_CLASS:
        raise UserError(
            f'data.partition = "{how.partition}" goes by classes, and the label is a number; use "similarity" '
            'or "even".'
        )
    owner = deal(rows.y, how.partition_clients, how.partition, how, seed)
    names = tuple(str(number + 1) for number in range(how.partition_clients))
    return dataclasses.replace(rows, client=owner.to(torch.int64), clients=names)
