"""Partitions: functions from labels to clients, by which samples that belong to nobody are dealt out.

The usual ways to make clients differ in their labels: each class spread over clients by a Dirichlet distribution
(Yurochkin et al. 2019; Li et al., NIID-Bench, 2022), a few classes per client (McMahan et al. 2017, there called
pathological), and a share of samples dealt evenly, the rest sorted by label (Karimireddy et al., SCAFFOLD, 2020).
Every sample goes to one client, none is left over, and the same seed gives the same partition.

>>> deal(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), clients=2, kind="pathological", how=Dealing(classes_per_client=1))
tensor([0, 0, 0, 0, 1, 1, 1, 1])
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from perinvfl.core.hyper import hyper
from perinvfl.core.naming import counted
from perinvfl.core.seeding import generator
from perinvfl.errors import UserError

Kind = Literal["even", "dirichlet", "pathological", "similarity"]
TRIES = 1000  # draws of a Dirichlet partition, until no client is left with next to nothing
LEAST = 10  # samples that the smallest client of a Dirichlet partition has, where there are enough


@dataclass(frozen=True)
class Dealing:
    """What a partition depends on besides the labels; each kind looks at its own settings."""

    alpha: float = hyper(
        0.1,
        "with partition dirichlet: how evenly each class is spread over clients; the smaller, the more "
        "clients differ; at 0.1, common in papers, most clients hold few classes",
        symbol="α",
        above=0,
        later=True,
    )
    classes_per_client: int = hyper(
        2,
        "with partition pathological: number of classes that each client holds; the fewer, the more clients "
        "differ; 2 is common in papers",
        least=1,
        later=True,
    )
    similarity: float = hyper(
        0.1,
        "with partition similarity: share of the samples divided at random, the rest being sorted by label, "
        "so that clients differ; 1 makes them alike, 0.1 leaves them very different",
        least=0,
        most=1,
        later=True,
    )
    size_spread: float = hyper(
        0.0,
        "how unequal clients are in size, as real ones are: standard deviation of the logarithm of their "
        "shares; 0 makes them equal, 1 very unequal",
        least=0,
        later=True,
    )


def deal(labels: Tensor, clients: int, kind: Kind, how: Dealing = Dealing(), seed: int = 0) -> Tensor:
    """[n] labels -> [n] int64: the client that each sample goes to."""
    if clients < 1:
        raise UserError(f"A partition needs at least one client, not {clients}.")
    if clients > len(labels):
        raise UserError(f"{len(labels)} samples cannot be dealt out to {clients} clients.")
    rng = generator(seed, "partition", kind)
    shares = torch.exp(how.size_spread * torch.randn(clients, generator=rng, dtype=torch.float64))
    owner = _WAYS[kind](labels, shares / shares.sum(), how, rng)
    empty = int((torch.bincount(owner, minlength=clients) == 0).sum())
    if empty:
        raise UserError(f"The partition leaves {counted(empty, 'client')} of {clients} without a sample; use fewer.")
    return owner


def _even(labels: Tensor, shares: Tensor, how: Dealing, rng: Generator) -> Tensor:
    return _cut(torch.randperm(len(labels), generator=rng), shares)


def _dirichlet(labels: Tensor, shares: Tensor, how: Dealing, rng: Generator) -> Tensor:
    """Class by class, p ~ Dirichlet(α) over clients, times their shares; drawn anew until every client has enough."""
    least = max(1, min(LEAST, len(labels) // (2 * len(shares))))
    groups = [(labels == label).nonzero().flatten() for label in labels.unique()]
    for _ in range(TRIES):
        owner = torch.zeros(len(labels), dtype=torch.int64)
        for members in groups:
            drawn = torch._standard_gamma(torch.full_like(shares, how.alpha), generator=rng).clamp(min=1e-300) * shares
            order = members[torch.randperm(len(members), generator=rng)]
            owner[order] = _places(len(order), drawn / drawn.sum())
        if int(torch.bincount(owner, minlength=len(shares)).min()) >= least:
            return owner
    raise UserError(
        f"No Dirichlet({how.alpha:g}) partition of {len(labels)} samples leaves each of {len(shares)} clients "
        f"{counted(least, 'sample')}; use a larger alpha or fewer clients."
    )


def _pathological(labels: Tensor, shares: Tensor, how: Dealing, rng: Generator) -> Tensor:
    """Each class to equally many clients, give or take one; its samples shared among them."""
    classes, clients, each = labels.unique(), len(shares), how.classes_per_client
    if each > len(classes):
        raise UserError(f"classes_per_client = {each}: the labels are of {len(classes)} classes.")
    if clients * each < len(classes):
        raise UserError(
            f"classes_per_client = {each}: {counted(clients, 'client')} cannot hold all {len(classes)} classes; use "
            "more clients, or more classes per client."
        )
    cards = torch.full((len(classes),), clients * each // len(classes))
    cards[torch.randperm(len(classes), generator=rng)[: clients * each % len(classes)]] += 1
    holds = torch.zeros(clients, len(classes), dtype=torch.bool)
    for client in range(clients):
        ties = torch.rand(len(classes), generator=rng)
        taken = (cards + ties).topk(each).indices  # those with most holders still to be found
        holds[client, taken] = True
        cards[taken] -= 1
    owner = torch.zeros(len(labels), dtype=torch.int64)
    for place, label in enumerate(classes):
        members = (labels == label).nonzero().flatten()
        order = members[torch.randperm(len(members), generator=rng)]
        mine = shares * holds[:, place]
        owner[order] = _places(len(order), mine / mine.sum())
    return owner


def _similarity(labels: Tensor, shares: Tensor, how: Dealing, rng: Generator) -> Tensor:
    order = torch.randperm(len(labels), generator=rng)
    even = round(how.similarity * len(labels))
    rest = order[even:]
    rest = rest[labels[rest].argsort(stable=True)]
    owner = torch.zeros(len(labels), dtype=torch.int64)
    for part in (order[:even], rest):
        owner[part] = _places(len(part), shares)
    return owner


_WAYS = {"even": _even, "dirichlet": _dirichlet, "pathological": _pathological, "similarity": _similarity}


def _cut(order: Tensor, shares: Tensor) -> Tensor:
    owner = torch.zeros_like(order)
    owner[order] = _places(len(order), shares)
    return owner


def _places(count: int, shares: Tensor) -> Tensor:
    """[count] the clients of so many samples in a row: one run for each client, as long as its share."""
    ends = (shares.cumsum(0) * count).round().long()
    ends[-1] = count
    return torch.searchsorted(ends, torch.arange(count), right=True)
