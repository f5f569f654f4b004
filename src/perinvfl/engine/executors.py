"""Run one client function over many clients and many trials: batched (`vmap`) or one after another (`loop`).

Both take the same pure functions and agree to rounding. Here is what they have in common: T trials, n clients taking
part; `perinvfl.engine.loop` and `perinvfl.engine.batched` are the executors.
"""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.messages import Combined, ServerState
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.data.federation import Split
from perinvfl.errors import UserError


class Cohort(NamedTuple):
    """What the clients taking part in a round are given."""

    ids: Tensor  # [T, n]
    data: Split  # [T, n, M, ...]
    indices: Tensor | None  # [T, n, steps, B] which samples each step looks at, or all data at every step
    shares: Tensor  # [T, n] of each client in the mean
    sizes: Tensor  # [T, n] how many samples each client really has
    round: int  # t

    def indices_of(self, t: int, i: int) -> Tensor | None:
        return None if self.indices is None else self.indices[t, i]


class Executor(Protocol):
    def clients(
        self, server: ServerState, states: Any, cohort: Cohort
    ) -> tuple[Combined, Tensor, Any]:  # combined uploads [T, ...], risks [T, n], new states
        ...

    def server(self, server: ServerState, combined: Combined, client_risks: Tensor, ids: Tensor) -> ServerState: ...

    def personal(self, server: ServerState, states: Any, cohort: Cohort) -> Params:  # [T, n, ...]
        ...

    def measure(self, params: Params, tests: list[Split]) -> Tensor:  # [T, n, number of tests, 1 + groups]
        ...

    def predict(self, params: Params, x: Tensor) -> Tensor:  # [T, n, M, outputs] logits
        ...

    def statistics(self, params: Params, cohort: Cohort) -> Params:  # [T, n, ...] of a model that has them
        ...


def varying_fields(algorithm: Algorithm) -> list[str]:
    """Fields that may differ between trials run as one program: numbers that only enter the arithmetic."""
    return [
        field.name
        for field in dataclasses.fields(algorithm)
        if float in (field.type, *typing.get_args(field.type)) or field.metadata.get("stacks")
    ]


def check_alike(algorithms: Sequence[Algorithm]) -> None:
    """Refuse trials that cannot be one program, rather than run some of them with the settings of another."""
    first = algorithms[0]
    varying = varying_fields(first)
    for other in algorithms[1:]:
        fixed = (
            [f.name for f in dataclasses.fields(first) if f.name not in varying] if type(other) is type(first) else []
        )
        unlike = [name for name in fixed if getattr(other, name) != getattr(first, name)]
        if unlike or type(other) is not type(first):
            what = ", ".join(unlike) or "the algorithm itself"
            raise UserError(f"Trials in one simulation may differ in {', '.join(varying)}, not in {what}.")


def row(stacked: Any, t: int) -> Any:
    """[T, ...] -> [...] of one trial."""
    return tree.over(lambda leaf: leaf[t], stacked)
