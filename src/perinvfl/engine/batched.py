"""All clients of all trials as one batched program, or unrolled into one recording: the ways to use a GPU."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms.aggregation import Mean
from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.messages import Broadcast, ClientState, Combined, ServerState
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.data.federation import Split
from perinvfl.engine.executors import Cohort, row, varying_fields
from perinvfl.engine.local_client import STATISTICS_SAMPLES, measure_logits, predict, with_settings
from perinvfl.learning.problem import Problem


class Batched:
    """All clients of all trials as one batched program: the way to use a GPU."""

    def __init__(self, algorithms: Sequence[Algorithm], problem: Problem, clients: int, device: torch.device) -> None:
        self.base, self.problem = algorithms[0], problem
        self.hyper, self.client_hyper = stack_settings(algorithms, clients, device)

    def clients(self, server: ServerState, states: ClientState, cohort: Cohort) -> Any:
        base = self.base.at(cohort.round)

        def one(hyper: dict[str, Tensor], broadcast: Broadcast, state: ClientState, data: Split, indices: Any) -> Any:
            algorithm = with_settings(base, dict(hyper))
            return algorithm.client_round(self.problem, broadcast, state, self.problem.batches(data, indices))

        uploads, states = self._over_clients(one, server, states, cohort)

        def combine(hyper: dict[str, Tensor], updates: Params, control: Params, shares: Tensor) -> Combined:
            update = with_settings(self.base, dict(hyper)).aggregation().combine(updates, shares)
            return Combined(update, Mean().combine(control, shares))

        combined = torch.vmap(combine)(self.hyper, uploads.update, uploads.control, cohort.shares)
        return combined, uploads.risk, states

    def server(self, server: ServerState, combined: Combined, client_risks: Tensor, ids: Tensor) -> ServerState:
        def one(hyper: dict[str, Tensor], *rest: Any) -> ServerState:
            return with_settings(self.base, dict(hyper)).server_round(*rest)

        return torch.vmap(one)(self.hyper, server, combined, client_risks, ids)

    def personal(self, server: ServerState, states: ClientState, cohort: Cohort) -> Params:
        def one(
            hyper: dict[str, Tensor], broadcast: Broadcast, state: ClientState, data: Split, indices: Any
        ) -> Params:
            algorithm = with_settings(self.base, dict(hyper))
            return algorithm.personal(self.problem, broadcast, state, self.problem.batches(data, indices))

        return self._over_clients(one, server, states, cohort)

    def measure(self, params: Params, tests: list[Split]) -> Tensor:
        one = torch.vmap(torch.vmap(lambda logits, y, context: measure_logits(self.problem, logits, y, context)))
        logits = {key: self.predict(params, x) for key, x in {id(test.x): test.x for test in tests}.items()}
        return torch.stack([one(logits[id(test.x)], test.y, test.context) for test in tests], 2)

    def predict(self, params: Params, x: Tensor) -> Tensor:
        models = x.shape[0] * x.shape[1]

        def one(params: Params, x: Tensor) -> Tensor:
            return predict(self.problem, params, x, models)

        if self._shares(x):
            return torch.vmap(torch.vmap(one), in_dims=(0, None))(params, x[0])
        return torch.vmap(one)(tree.flatten_axes(params), x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def _shares(self, x: Tensor) -> bool:
        """Whether all trials look at the same inputs [T, n, ...], and the model can make use of that."""
        return self.problem.batched and x.shape[0] > 1 and x.stride(0) == 0

    def statistics(self, params: Params, cohort: Cohort) -> Params:
        assert self.problem.model.statistics is not None
        trials, n = cohort.ids.shape
        device = cohort.ids.device
        places = torch.arange(STATISTICS_SAMPLES, device=device) * cohort.sizes[..., None] // STATISTICS_SAMPLES
        trial, client = torch.arange(trials, device=device)[:, None, None], torch.arange(n, device=device)[:, None]
        x = cohort.data.x[trial, client, places]  # [T, n, samples, ...], none of them padding
        measured = torch.vmap(self.problem.model.statistics)(tree.flatten_axes(params), x.flatten(0, 1))
        return tree.split_axis(measured, trials)

    def _over_clients(self, one: Callable[..., Any], server: ServerState, states: ClientState, cohort: Cohort) -> Any:
        trials, n = cohort.ids.shape

        def send(hyper: dict[str, Tensor], server: ServerState, ids: Tensor) -> Broadcast:
            return with_settings(self.base, dict(hyper)).broadcast(server, ids)

        sent = torch.vmap(send)(self.hyper, server, cohort.ids)

        def to_each(leaf: Tensor) -> Tensor:  # [T, ...] -> [T, n, ...]
            return leaf[:, None].expand(trials, n, *leaf.shape[1:])

        now, control = to_each(torch.as_tensor(sent.round)), tree.map(to_each, sent.control)
        broadcast = Broadcast(tree.map(to_each, sent.params), sent.weight, now, control)
        rows = {
            name: leaf.gather(1, cohort.ids) if leaf.ndim == 2 else leaf[:, None].expand(trials, n)
            for name, leaf in self.client_hyper.items()
        }
        return self._map(one, (rows, broadcast, states), cohort)

    def _map(self, one: Callable[..., Any], given: tuple[Any, ...], cohort: Cohort) -> Any:
        """`one` for every client of every trial, with what it is given besides its data: all [T, n, ...]."""
        drawn = None if cohort.indices is None else 0
        if self._shares(cohort.data.x):
            data = cohort.data._replace(x=cohort.data.x[0])
            each = torch.vmap(one, in_dims=(0, 0, 0, 0, drawn))
            both = torch.vmap(each, in_dims=(0, 0, 0, Split(None, 0, 0), drawn))  # type: ignore[arg-type]
            return both(*given, data, cohort.indices)
        flat = tree.flatten_axes((*given, cohort.data))
        indices = None if cohort.indices is None else cohort.indices.flatten(0, 1)
        found = torch.vmap(one, in_dims=(0, 0, 0, 0, drawn))(*flat, indices)
        return tree.split_axis(found, cohort.ids.shape[0])


class Unrolled(Batched):
    """One client after another, on the states of a batched program: a GPU records the whole round once and replays it.

    Large convolutions gain nothing from being batched over models; what a loop loses is the time between kernels, and
    in a recording there is none.
    """

    def _map(self, one: Callable[..., Any], given: tuple[Any, ...], cohort: Cohort) -> Any:
        def at(t: int, i: int) -> Any:
            own = row(row((*given, cohort.data), t), i)
            return one(*own, cohort.indices_of(t, i))

        trials, n = cohort.ids.shape
        return tree.stack([tree.stack([at(t, i) for i in range(n)]) for t in range(trials)])


def stack_settings(
    algorithms: Sequence[Algorithm], clients: int, device: torch.device
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The settings that differ between trials, [T], for the server; those and per-client ones, [T, N], for clients."""
    server, client = {}, {}
    for name in varying_fields(algorithms[0]):
        values = [getattr(algorithm, name) for algorithm in algorithms]
        if any(isinstance(value, tuple) for value in values):
            rows = [value if isinstance(value, tuple) else (value,) * clients for value in values]
            client[name] = torch.tensor(rows, dtype=torch.float32, device=device)
        elif len(set(values)) > 1:
            server[name] = client[name] = torch.tensor(values, dtype=torch.float32, device=device)
    return server, client
