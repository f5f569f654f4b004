"""ERM on all data in one place: Vapnik, Principles of Risk Minimization for Learning Theory, 1991."""

from dataclasses import dataclass
from typing import ClassVar

from perinvfl.algorithms.pooled import Pooled


@dataclass(frozen=True)
class PooledERM(Pooled):
    """The mean loss over the samples of all clients, as if none had to keep them."""

    title: ClassVar[str] = "ERM, pooled"
    paper: ClassVar[str] = "Vapnik 1991"
