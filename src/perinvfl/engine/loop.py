"""One client after another, each as it would run on its own."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms.aggregation import Mean
from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.messages import Broadcast, ClientState, Combined, ServerState, Upload
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.data.federation import Split
from perinvfl.engine.executors import Cohort, row
from perinvfl.engine.local_client import LocalClient, for_client, measure, predict
from perinvfl.learning.problem import Problem


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
    def clients(self, server: ServerState, states: list[list[ClientState]], cohort: Cohort) -> Any:
        trials, n = cohort.ids.shape
        broadcasts = [self._broadcast(t, server, cohort) for t in range(trials)]

        def job(place: tuple[int, int]) -> tuple[Upload, ClientState]:
            t, i = place
            return self._client(cohort, t, i).round(broadcasts[t][i], states[t][i], cohort.indices_of(t, i))

        gathered = [algorithm.aggregation().begin() for algorithm in self.algorithms]
        controls = [Mean().begin() for _ in self.algorithms]
        new_risks = torch.empty(trials, n, device=cohort.ids.device)
        new_states: list[list[ClientState]] = [[] for _ in range(trials)]
        for (t, i), (upload, state) in zip(_places(trials, n), self._spread(job, _places(trials, n)), strict=True):
            gathered[t].add(upload.update, float(cohort.shares[t, i]))
            controls[t].add(upload.control, float(cohort.shares[t, i]))
            new_risks[t, i] = upload.risk
            new_states[t].append(state)
        combined = [
            Combined(update.result(shares), control.result(shares))
            for update, control, shares in zip(gathered, controls, cohort.shares, strict=True)
        ]
        return tree.stack(combined), new_risks, new_states

    @threads(1)
    def server(self, server: ServerState, combined: Combined, client_risks: Tensor, ids: Tensor) -> ServerState:
        trials = [
            algorithm.server_round(row(server, t), row(combined, t), client_risks[t], ids[t])
            for t, algorithm in enumerate(self.algorithms)
        ]
        return tree.stack(trials)

    @threads(1)
    def personal(self, server: ServerState, states: list[list[ClientState]], cohort: Cohort) -> Params:
        trials, n = cohort.ids.shape
        broadcasts = [self._broadcast(t, server, cohort) for t in range(trials)]

        def job(place: tuple[int, int]) -> Params:
            t, i = place
            return self._client(cohort, t, i).personal(broadcasts[t][i], states[t][i], cohort.indices_of(t, i))

        return tree.split_axis(tree.stack(list(self._spread(job, _places(trials, n)))), trials)

    @threads(1)
    def measure(self, params: Params, tests: list[Split]) -> Tensor:
        trials, n = next(iter(params.values())).shape[:2]

        def job(place: tuple[int, int]) -> Tensor:
            inputs = {id(test.x): test.x[place] for test in tests}  # tests that share their inputs go on doing so
            own = [Split(inputs[id(test.x)], test.y[place], test.context[place]) for test in tests]
            return measure(self.problem, tree.map(lambda leaf: leaf[place], params), own)

        return torch.stack(list(self._spread(job, _places(trials, n)))).unflatten(0, (trials, n))

    @threads(1)
    def predict(self, params: Params, x: Tensor) -> Tensor:
        def job(place: tuple[int, int]) -> Tensor:
            return predict(self.problem, tree.map(lambda leaf: leaf[place], params), x[place])

        return torch.stack(list(self._spread(job, _places(*x.shape[:2])))).unflatten(0, x.shape[:2])

    @threads(1)
    def statistics(self, params: Params, cohort: Cohort) -> Params:
        trials, n = cohort.ids.shape

        def job(place: tuple[int, int]) -> Params:
            return self._client(cohort, *place).statistics(tree.map(lambda leaf: leaf[place], params))

        return tree.split_axis(tree.stack(list(self._spread(job, _places(trials, n)))), trials)

    def _client(self, cohort: Cohort, t: int, i: int) -> LocalClient:
        """The client as it would be on its own: its own settings, its own data without padding."""
        size = int(cohort.sizes[t, i])
        data = Split(*(part[t, i, :size] for part in cohort.data))
        return LocalClient(for_client(self.algorithms[t], int(cohort.ids[t, i])), self.problem, data)

    def _broadcast(self, t: int, server: ServerState, cohort: Cohort) -> list[Broadcast]:
        sent = self.algorithms[t].broadcast(row(server, t), cohort.ids[t])
        now = int(sent.round)  # a plain number: no tensor arithmetic for the schedule
        return [sent._replace(weight=weight, round=now) for weight in sent.weight]

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


def _places(trials: int, n: int) -> list[tuple[int, int]]:
    return [(t, i) for t in range(trials) for i in range(n)]
