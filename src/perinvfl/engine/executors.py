"""Run one client function over many clients and many trials: batched (`vmap`) or one after another (`loop`).

Both take the same pure functions and agree to rounding. T trials, n clients taking part.
"""

import dataclasses
import typing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from perinvfl.algorithms.aggregation.fedgma import damped
from perinvfl.algorithms.aggregation.fedomg import matched
from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, ServerState, Upload
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.data.federation import Split
from perinvfl.errors import UserError
from perinvfl.learning import risks
from perinvfl.learning.problem import Batches, Problem

PIECE = 2**20  # most numbers that one model looks at in one go when it is only measured


class Task(NamedTuple):
    """What the clients taking part in a round are given."""

    ids: Tensor  # [T, n]
    data: Split  # [T, n, M, ...]
    places: Tensor | None  # [T, n, steps, B], or all data at every step
    weights: Tensor  # [T, n] share of each client in the mean


class Executor(Protocol):
    def clients(
        self, server: ServerState, states: Any, task: Task
    ) -> tuple[Params, Tensor, Any]:  # mean update [T, ...], risks [T, n], new states
        ...

    def server(self, server: ServerState, update: Params, client_risks: Tensor, ids: Tensor) -> ServerState: ...

    def personal(self, server: ServerState, states: Any, task: Task) -> Params:  # [T, n, ...]
        ...

    def measure(self, params: Params, tests: list[Split]) -> Tensor:  # [T, n, number of tests, 1 + groups]
        ...

    def predict(self, params: Params, x: Tensor) -> Tensor:  # [T, n, M, outputs] logits
        ...

    def statistics(self, params: Params, x: Tensor) -> Params:  # [T, n, ...] of a model that has them, on x [T, n, B]
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


def with_settings(algorithm: Algorithm, settings: dict[str, Any]) -> Algorithm:
    return dataclasses.replace(algorithm, **settings) if settings else algorithm


def for_client(algorithm: Algorithm, client: int) -> Algorithm:
    """The algorithm as one client knows it: a list of settings gives it its own entry."""
    lists = {
        field.name: getattr(algorithm, field.name)
        for field in dataclasses.fields(algorithm)
        if isinstance(getattr(algorithm, field.name), tuple)
    }
    return with_settings(algorithm, {name: value[client] for name, value in lists.items()})


@contextmanager
def threads(count: int) -> Iterator[None]:
    """This many threads for one operation, for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Loop:
    """One client after another, spread over the CPU's cores: each client on one thread.

    Small matrix products gain more from a core each than from being cut in two, and so does all other arithmetic:
    threads that wait for each other stall whenever another program takes a core.
    """

    def __init__(self, algorithms: Sequence[Algorithm], problem: Problem, workers: int) -> None:
        self.algorithms, self.problem = algorithms, problem
        self.workers = workers
        self.pool = ThreadPoolExecutor(workers) if workers > 1 else None

    @threads(1)
    def clients(self, server: ServerState, states: list[list[ClientState]], task: Task) -> Any:
        trials, n = task.ids.shape
        broadcasts = [self._broadcast(t, server, task) for t in range(trials)]

        def job(place: tuple[int, int]) -> tuple[Upload, ClientState]:
            t, i = place
            algorithm = for_client(self.algorithms[t], int(task.ids[t, i]))
            return algorithm.client_round(self.problem, broadcasts[t][i], states[t][i], self._batches(task, t, i))

        update: list[Params] = [{} for _ in range(trials)]
        signs: list[Params] = [{} for _ in range(trials)]
        new_risks = torch.empty(trials, n, device=task.ids.device)
        new_states: list[list[ClientState]] = [[] for _ in range(trials)]
        kept: list[list[Params]] = [[] for _ in range(trials)]
        for (t, i), (upload, state) in zip(_places(trials, n), self._spread(job, _places(trials, n)), strict=True):
            share = float(task.weights[t, i])
            if self.algorithms[t].matching:
                kept[t].append(upload.update)
            else:
                update[t] = _add(update[t], upload.update, share)
            if self.algorithms[t].agreement:
                signs[t] = _add(signs[t], tree.map(torch.sign, upload.update), share)
            new_risks[t, i] = upload.risk
            new_states[t].append(state)
        for t, algorithm in enumerate(self.algorithms):
            if algorithm.matching:
                update[t] = matched(tree.stack(kept[t]), task.weights[t], algorithm.matching)
            if algorithm.agreement:
                update[t] = damped(update[t], signs[t], algorithm.agreement)
        return tree.stack(update), new_risks, new_states

    @threads(1)
    def server(self, server: ServerState, update: Params, client_risks: Tensor, ids: Tensor) -> ServerState:
        trials = [
            algorithm.server(_row(server, t), _row(update, t), client_risks[t], ids[t])
            for t, algorithm in enumerate(self.algorithms)
        ]
        return tree.stack(trials)

    @threads(1)
    def personal(self, server: ServerState, states: list[list[ClientState]], task: Task) -> Params:
        trials, n = task.ids.shape
        broadcasts = [self._broadcast(t, server, task) for t in range(trials)]

        def job(place: tuple[int, int]) -> Params:
            t, i = place
            algorithm = for_client(self.algorithms[t], int(task.ids[t, i]))
            return algorithm.personal(self.problem, broadcasts[t][i], states[t][i], self._batches(task, t, i))

        return tree.split_axis(tree.stack(list(self._spread(job, _places(trials, n)))), trials)

    @threads(1)
    def measure(self, params: Params, tests: list[Split]) -> Tensor:
        trials, n = next(iter(params.values())).shape[:2]

        def job(place: tuple[int, int]) -> Tensor:
            own = tree.map(lambda leaf: leaf[place], params)
            logits = {key: _predict(self.problem, own, x[place]) for key, x in _distinct(tests).items()}
            return torch.stack(
                [_measure(self.problem, logits[id(test.x)], test.y[place], test.context[place]) for test in tests]
            )

        return torch.stack(list(self._spread(job, _places(trials, n)))).unflatten(0, (trials, n))

    @threads(1)
    def predict(self, params: Params, x: Tensor) -> Tensor:
        def job(place: tuple[int, int]) -> Tensor:
            return _predict(self.problem, tree.map(lambda leaf: leaf[place], params), x[place])

        return torch.stack(list(self._spread(job, _places(*x.shape[:2])))).unflatten(0, x.shape[:2])

    @threads(1)
    def statistics(self, params: Params, x: Tensor) -> Params:
        assert self.problem.model.statistics is not None
        measure, places = self.problem.model.statistics, _places(*x.shape[:2])

        def job(place: tuple[int, int]) -> Params:
            return measure(tree.map(lambda leaf: leaf[place], params), x[place])

        return tree.split_axis(tree.stack(list(self._spread(job, places))), x.shape[0])

    def _batches(self, task: Task, t: int, i: int) -> Batches:
        data = Split(*(part[t, i] for part in task.data))
        return self.problem.batches(data, None if task.places is None else task.places[t, i])

    def _broadcast(self, t: int, server: ServerState, task: Task) -> list[Broadcast]:
        sent = self.algorithms[t].broadcast(_row(server, t), task.ids[t])
        now = int(sent.round)  # a plain number: no tensor arithmetic for the schedule
        return [Broadcast(sent.params, weight, now) for weight in sent.weight]

    def _spread(self, job: Callable[[tuple[int, int]], Any], places: list[tuple[int, int]]) -> Iterator[Any]:
        """Results in the order of the places, whatever the order in which they are ready."""
        if self.pool is None or len(places) == 1:
            with torch.no_grad(), threads(self.workers):
                yield from map(job, places)
            return

        def alone(place: tuple[int, int]) -> Any:
            torch.set_num_threads(1)  # of this worker; where the product library knows only one number, of all
            with torch.no_grad():
                return job(place)

        waiting = [self.pool.submit(alone, place) for place in places][::-1]
        try:
            while waiting:
                yield waiting.pop().result()
        finally:
            for future in waiting:
                future.cancel()


class Batched:
    """All clients of all trials as one batched program: the way to use a GPU."""

    def __init__(self, algorithms: Sequence[Algorithm], problem: Problem, clients: int, device: torch.device) -> None:
        self.base, self.problem = algorithms[0], problem
        self.hyper, self.client_hyper = stack_settings(algorithms, clients, device)

    def clients(self, server: ServerState, states: ClientState, task: Task) -> Any:
        def one(hyper: dict[str, Tensor], broadcast: Broadcast, state: ClientState, data: Split, places: Any) -> Any:
            algorithm = with_settings(self.base, hyper)
            return algorithm.client_round(self.problem, broadcast, state, self.problem.batches(data, places))

        uploads, states = self._over_clients(one, server, states, task)
        weights = task.weights

        def mean(leaf: Tensor) -> Tensor:
            return torch.einsum("tn,tn...->t...", weights, leaf)

        def setting(name: str) -> Tensor | None:
            """[trials] where a trial sets it."""
            if not getattr(self.base, name) and name not in self.hyper:
                return None
            return self.hyper.get(name, weights.new_full((len(weights),), getattr(self.base, name)))

        radius, least = setting("matching"), setting("agreement")
        if radius is None:
            update = tree.map(mean, uploads.update)
        else:
            update = torch.vmap(matched)(uploads.update, weights, radius)
        if least is not None:
            signs = tree.map(lambda leaf: mean(leaf.sign()), uploads.update)
            update = torch.vmap(damped)(update, signs, least)
        return update, uploads.risk, states

    def server(self, server: ServerState, update: Params, client_risks: Tensor, ids: Tensor) -> ServerState:
        def one(hyper: dict[str, Tensor], *rest: Any) -> ServerState:
            return with_settings(self.base, hyper).server(*rest)

        return torch.vmap(one)(self.hyper, server, update, client_risks, ids)

    def personal(self, server: ServerState, states: ClientState, task: Task) -> Params:
        def one(hyper: dict[str, Tensor], broadcast: Broadcast, state: ClientState, data: Split, places: Any) -> Params:
            algorithm = with_settings(self.base, hyper)
            return algorithm.personal(self.problem, broadcast, state, self.problem.batches(data, places))

        return self._over_clients(one, server, states, task)

    def measure(self, params: Params, tests: list[Split]) -> Tensor:
        trials = next(iter(params.values())).shape[0]
        flat = tree.flatten_axes(params)
        predict = torch.vmap(lambda p, x: _predict(self.problem, p, x))
        one = torch.vmap(lambda logits, y, context: _measure(self.problem, logits, y, context))
        logits = {key: predict(flat, x.flatten(0, 1)) for key, x in _distinct(tests).items()}
        told = [one(logits[id(test.x)], test.y.flatten(0, 1), test.context.flatten(0, 1)) for test in tests]
        return torch.stack(told, 1).unflatten(0, (trials, -1))

    def predict(self, params: Params, x: Tensor) -> Tensor:
        one = torch.vmap(lambda p, own: _predict(self.problem, p, own))
        return one(tree.flatten_axes(params), x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def statistics(self, params: Params, x: Tensor) -> Params:
        assert self.problem.model.statistics is not None
        measured = torch.vmap(self.problem.model.statistics)(tree.flatten_axes(params), x.flatten(0, 1))
        return tree.split_axis(measured, x.shape[0])

    def _over_clients(self, one: Callable[..., Any], server: ServerState, states: ClientState, task: Task) -> Any:
        trials, n = task.ids.shape

        def send(hyper: dict[str, Tensor], server: ServerState, ids: Tensor) -> Broadcast:
            return with_settings(self.base, hyper).broadcast(server, ids)

        sent = torch.vmap(send)(self.hyper, server, task.ids)

        def to_each(leaf: Tensor) -> Tensor:  # [T, ...] -> [T * n, ...]
            return leaf[:, None].expand(trials, n, *leaf.shape[1:]).flatten(0, 1)

        broadcast = Broadcast(
            tree.map(to_each, sent.params), sent.weight.flatten(), to_each(torch.as_tensor(sent.round))
        )
        rows = {
            name: (leaf.gather(1, task.ids) if leaf.ndim == 2 else leaf[:, None].expand(trials, n)).flatten()
            for name, leaf in self.client_hyper.items()
        }
        data, states = tree.flatten_axes(task.data), tree.flatten_axes(states)
        places = None if task.places is None else task.places.flatten(0, 1)
        return tree.split_axis(self._map(one, (rows, broadcast, states, data, places), trials * n), trials)

    def _map(self, one: Callable[..., Any], stacked: tuple[Any, ...], count: int) -> Any:
        """`one` for every place on the first axis of what is stacked; a None is the same for all."""
        return torch.vmap(one, in_dims=tuple(None if part is None else 0 for part in stacked))(*stacked)


class Unrolled(Batched):
    """One client after another, on the states of a batched program: a GPU records the whole round once and replays it.

    Large convolutions gain nothing from being batched over models; what a loop loses is the time between kernels, and
    in a recording there is none.
    """

    def _map(self, one: Callable[..., Any], stacked: tuple[Any, ...], count: int) -> Any:
        def at(place: int) -> list[Any]:
            return [None if part is None else _row(part, place) for part in stacked]

        return tree.stack([one(*at(place)) for place in range(count)])


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


def _distinct(tests: list[Split]) -> dict[int, Tensor]:
    """The inputs of all tests, each once: test contexts may share theirs, and the models need not look twice."""
    return {id(test.x): test.x for test in tests}


def _predict(problem: Problem, params: Params, x: Tensor) -> Tensor:
    """Logits of one client's samples, in pieces where the samples are large: many models do this at once."""
    piece = max(1, PIECE // x[0].numel())
    return torch.cat([problem.model.apply(params, part) for part in x.split(piece)])


def _measure(problem: Problem, logits: Tensor, y: Tensor, context: Tensor) -> Tensor:
    return risks.measure(problem.task, logits, y, context, problem.groups)


def _row(stacked: Any, t: int) -> Any:
    return tree.over(lambda leaf: leaf[t], stacked)


def _add(total: Params, part: Params, share: float) -> Params:
    """total + share * part, in the total's own memory."""
    if not total:
        return tree.map(lambda leaf: leaf * share, part)
    return tree.map(lambda sum_, leaf: sum_.add_(leaf, alpha=share), total, part)


def _places(trials: int, n: int) -> list[tuple[int, int]]:
    return [(t, i) for t in range(trials) for i in range(n)]
