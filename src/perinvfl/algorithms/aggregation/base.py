"""The interface of every aggregation."""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from torch import Tensor

from perinvfl.core import tree
from perinvfl.core.tree import Params


class Gathering(Protocol):
    """Updates that come in one by one."""

    def add(self, update: Params, share: float) -> None: ...

    def result(self, shares: Tensor) -> Params: ...


@dataclass(frozen=True)
class Aggregation:
    """From the updates of the clients that took part, and the shares [n] they have in the mean, to one update."""

    needs_updates: ClassVar[bool] = True  # whether the server must see single updates, and not only their sum

    def combine(self, updates: Params, shares: Tensor) -> Params:
        """From updates that carry a client axis [n, ...]."""
        raise NotImplementedError

    def begin(self) -> Gathering:
        return _Kept(self)


@dataclass
class _Kept:
    """All of them, until the last is there."""

    aggregation: Aggregation
    updates: list[Params] = field(default_factory=list)

    def add(self, update: Params, share: float) -> None:
        self.updates.append(update)

    def result(self, shares: Tensor) -> Params:
        return self.aggregation.combine(tree.stack(self.updates), shares)
