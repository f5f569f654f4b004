"""The simulator: rounds of one federated algorithm on one machine, for one trial or many at once.

>>> from perinvfl.algorithms import FedAvg
>>> from perinvfl.data.benchmarks.random import random_federation
>>> simulation = Simulation([FedAvg(learning_rate=0.5)], [random_federation()], seeds=[0])
>>> for _ in range(3):
...     risks = simulation.round()
>>> risks.shape  # trials, clients
torch.Size([1, 3])
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.messages import ClientState, ServerState
from perinvfl.core import tree
from perinvfl.core.mapped import let_go
from perinvfl.core.seeding import generator
from perinvfl.core.tree import Params
from perinvfl.data.federation import Federation, Split
from perinvfl.data.images import for_all
from perinvfl.engine import draws
from perinvfl.engine.batched import Batched, Unrolled
from perinvfl.engine.compiling import compiles
from perinvfl.engine.cuda_graph import RecordedRound
from perinvfl.engine.devices import pick_device, to_device
from perinvfl.engine.executors import Cohort, Executor, check_alike
from perinvfl.engine.loop import Loop
from perinvfl.engine.problems import build_problem, check_batch_size, pick_batched
from perinvfl.engine.room import check_room
from perinvfl.engine.stacking import laid_out, stack_splits
from perinvfl.engine.store import PerClientStore, Stacked, unstack
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import Model, ModelSettings, build_model, mix_statistics

CLIENT_CHUNK = 64  # clients whose models are measured at once


class Simulation:
    """T trials of one algorithm, each with its own settings and seed, in step with each other."""

    def __init__(
        self,
        algorithms: Sequence[Algorithm],
        federations: list[Federation],  # one for all trials, or one per trial
        seeds: list[int],
        training: Training = Training(),
        model: ModelSettings | Model = ModelSettings(),
        folder: Path | None = None,  # for states at rest on disk
    ) -> None:
        check_alike(algorithms)
        largest = max(int(federation.sizes.max()) for federation in federations)
        check_batch_size(training, training.batch_size <= largest)
        self.algorithms, self.training, self.seeds, self.federation = algorithms, training, seeds, federations[0]
        self.augmentations = [federation.augmentation for federation in federations]
        self.device = pick_device(training.device)
        self.trials, self.clients = len(algorithms), self.federation.clients
        self.everyone = torch.arange(self.clients, device=self.device).expand(self.trials, -1)  # [T, N]
        # [T, n] who is tested: a sample of the clients, or more than train, where one holds all training data.
        self.tested_clients = self._who_is_tested()
        if training.precision == "tf32":
            torch.backends.cuda.matmul.allow_tf32 = True
        if isinstance(model, ModelSettings):
            model = build_model(model, self.federation.shape, self.federation.outputs, training.precision)
        self.model = model
        check_room(algorithms, training, model, self.clients)
        self.executor = self._pick_executor(federations)
        self._place(federations)
        self._start(folder)
        self.rounds_done = 0
        # [T] the round after which a trial was no longer finite; -1 while all is well.
        self.broken = torch.full((self.trials,), -1, device=self.device)
        self._recorded: RecordedRound | None = None
        self._can_record = self.device.type == "cuda" and isinstance(self.store, Stacked) and training.fraction == 1

    def _who_is_tested(self) -> Tensor:
        tested = max((len(test.y) for test in self.federation.tests.values()), default=self.clients)
        sample = draws.evaluated_clients(tested, self.training.evaluate_clients)
        if sample is not None:
            return sample.to(self.device).expand(self.trials, -1)
        everyone = torch.arange(tested, device=self.device).expand(self.trials, -1)
        return self.everyone if tested == self.clients else everyone

    def chunks(self, clients: int) -> Iterator[Tensor]:
        """[T, n] those who are tested, so many at once."""
        everyone = self.tested_clients
        for ids in [everyone] if everyone.shape[1] <= clients else everyone.split(clients, 1):
            yield ids
            let_go()  # of data that lie in files

    def _pick_executor(self, federations: list[Federation]) -> Executor:
        batched = pick_batched(self.training, self.device, self.model)
        # On a GPU a loop is recorded and replayed like a batched program, and so its states are stacked like one's.
        unrolled = not batched and self.device.type == "cuda" and not compiles(self.training, batched, self.model)
        sizes = {size for federation in federations for size in federation.sizes.unique().tolist()}
        padded = (batched or unrolled) and len(sizes) > 1
        shown = dataclasses.replace(self.federation, augmentation=for_all([f.augmentation for f in federations]))
        self.problem = build_problem(shown, self.training, self.model, batched, padded)
        if batched or unrolled:
            kind = Unrolled if unrolled else Batched
            return kind(self.algorithms, self.problem, self.clients, self.device)
        workers = torch.get_num_threads() if self.device.type == "cpu" else 1
        return Loop(self.algorithms, self.problem, workers)

    def _place(self, federations: list[Federation]) -> None:
        """The data of all trials, where they are trained and measured on."""

        def stacked(splits: list[Split]) -> Split:
            return stack_splits(splits, self.trials, self.device, self.training, shared)

        shared: dict[tuple[int, ...], Tensor] = {}  # tests that share their inputs go on doing so
        train = stacked([f.train for f in federations])
        self.data = train._replace(context=train.context.clone(memory_format=torch.contiguous_format))
        self.tests = {name: stacked([f.tests[name] for f in federations]) for name in self.federation.tests}
        if self.federation.validation is not None:
            self.tests["validation"] = stacked([f.validation for f in federations if f.validation is not None])
        for name in self.federation.inferred:
            self.tests[name] = stacked([f.inferred[name] for f in federations])
        # [T, n] by test: which of those tested have a sample of it; a client without any has no score.
        looked_at = self.tested_clients[0].cpu()
        there = {name: (test.context >= 0).any(-1).cpu() for name, test in self.tests.items()}
        self.tested = {name: some[:, looked_at] for name, some in there.items()}
        self.sizes = torch.stack([f.sizes for f in federations]).expand(self.trials, -1)  # [T, N]
        self._drawn_from: list[list[int]] = self.sizes.tolist()
        if isinstance(self.executor, Batched) and self.training.fraction == 1:
            x = laid_out(self.data.x, self.model, self.training) if self.problem.batched else self.data.x.contiguous()
            self.data = Split(x, self.data.y.contiguous(), self.data.context.contiguous())

    def _start(self, folder: Path | None) -> None:
        """The states of the server and of all clients before the first round."""
        starts = [self.model.init(generator(seed, "weights")) for seed in self.seeds]
        starts = [tree.map(lambda leaf: leaf.to(self.device), params) for params in starts]
        pairs = list(zip(self.algorithms, starts, strict=True))
        servers = [a.init_server(a.shared_part(self.model, params), self.clients) for a, params in pairs]
        self.server: ServerState = tree.stack(servers)
        client_states = [a.init_client(params, self.federation.contexts) for a, params in pairs]
        stacked = isinstance(self.executor, Batched)
        self.store: Stacked | PerClientStore
        if stacked and self.training.at_rest == "memory":
            self.store = Stacked(tree.stack(client_states), self.clients, self.everyone)
        else:
            at_rest = [tree.over(lambda leaf: leaf.cpu(), state) for state in client_states]
            self.store = PerClientStore(at_rest if stacked else client_states, self.clients, self._rest_folder(folder))

    def round(self) -> Tensor:
        """Do one round; the risks R(ν^t; D_i) of the clients that took part, [T, n]."""
        t = self.rounds_done
        ids = self.participants(t)
        indices = self.sample_indices(t, ids, self.algorithms[0].batches_per_round(), "batches")
        if self._can_record:
            if self._recorded is None or self._recorded.algorithm != self.algorithms[0].at(t):
                self._recorded = RecordedRound(self, ids, indices)
            risks = self._recorded.replay(indices)
        else:
            risks = self.advance(self.cohort(ids, indices))
            let_go()
        self.rounds_done += 1
        return risks

    def evaluate(self, client_chunk: int = CLIENT_CHUNK) -> dict[str, dict[str, Tensor]]:
        """{"personal" | "global": {test context: [T, N]}} accuracy (mean squared error for regression).

        Not a number for a client that has no sample of a test context. Where tests have groups also {"personal groups"
        | "global groups": {test context: [T, N, groups]}}, the number of right answers.
        """
        kinds = [kind for kind in ("personal", "global") if getattr(self.algorithms[0], f"has_{kind}")]
        columns: dict[str, list[Tensor]] = {kind: [] for kind in kinds}
        for ids in self.chunks(client_chunk):
            tests = self.tests_of(ids)
            for kind in kinds:
                params = self.models_of(kind, ids)
                fine = torch.isfinite(_smallest(params)).flatten(1).all(1)  # fine-tuning may break what was sound
                self.broken.copy_(torch.where((self.broken < 0) & ~fine, self.rounds_done, self.broken))
                columns[kind].append(self.executor.measure(params, tests))
        scores: dict[str, dict[str, Tensor]] = {}
        measured = {kind: torch.cat(parts, 1).cpu() for kind, parts in columns.items()}  # [T, N, tests, 1 + groups]
        for kind, table in measured.items():
            by_test = dict(zip(self.tests, table[..., 0].unbind(-1), strict=True))
            scores[kind] = {name: torch.where(self.tested[name], by_test[name], torch.nan) for name in by_test}
        if self.federation.groups:
            for kind, table in measured.items():
                counts = dict(zip(self.tests, table[..., 1:].unbind(-2), strict=True))
                scores[f"{kind} groups"] = {name: counts[name] for name in self.federation.tests}
        return scores

    @property
    def samples_clients(self) -> bool:
        """Whether evaluations look at some of the clients only."""
        return 0 < self.training.evaluate_clients < self.clients

    @property
    def trained_clients(self) -> Tensor:
        """[T, n] of those who train, whom evaluations look at."""
        sample = draws.evaluated_clients(self.clients, self.training.evaluate_clients)
        return self.everyone if sample is None else sample.to(self.device).expand(self.trials, -1)

    # Models --------------------------------------------------------------------------------------------------------

    def personal_models(self, ids: Tensor) -> Params:
        """What the clients ids [T, n] train to predict with now, [T, n, ...]."""
        steps = self.algorithms[0].batches_at_end()
        indices = self.sample_indices(self.rounds_done, ids, steps, "fine-tuning")
        server = self.server._replace(params=self.server.in_use)
        return self.executor.personal(server, self.states_of(ids), self.cohort(ids, indices))

    def models_of(self, kind: str, ids: Tensor) -> Params:
        """The "personal" or the "global" model as the clients ids [T, n] predict with it, [T, n, ...].

        Personal models take the statistics of their own client's data, if they have any, the global model statistics
        mixed from all clients.
        """
        if kind == "global" or self.algorithms[0].pooled:
            return _to_each(self.shared_model(), ids.shape[1])
        params = self.personal_models(ids)
        return params if self.model.statistics is None else params | self._statistics(params, ids)

    def shared_model(self) -> Params:
        """[T, ...] the global model as it predicts."""
        params = self.server.in_use
        if self.model.statistics is None:
            return params
        # One client at a time: only the statistics are kept of each.
        each = [self._statistics(_to_each(params, 1), self.everyone[:, i : i + 1]) for i in range(self.clients)]
        joint = {name: torch.cat([part[name] for part in each], 1) for name in each[0]}
        return params | mix_statistics(joint, self.cohort(self.everyone, None).shares)

    def _statistics(self, params: Params, ids: Tensor) -> Params:
        return self.executor.statistics(params, self.cohort(ids, None))

    # Draws and data ------------------------------------------------------------------------------------------------

    def participants(self, round: int) -> Tensor:
        """[T, n] who takes part."""
        drawn = [draws.participants(seed, round, self.clients, self.training.fraction) for seed in self.seeds]
        return self.everyone if len(drawn[0]) == self.clients else torch.stack(drawn).to(self.device)

    def sample_indices(self, round: int, ids: Tensor, steps: int, purpose: str) -> Tensor | None:
        """[T, n, steps, B] drawn by (seed, client, round) alone, so that a deployed client draws the same."""
        shape = draws.batches_shape(self.training, steps)
        if shape is None:
            return None
        padded = self.data.y.shape[-1] if isinstance(self.executor, Batched) else None
        # Not asked of a GPU each round, which would wait for it.
        listed = [list(range(self.clients))] * self.trials if ids is self.everyone else ids.tolist()
        drawn = draws.indices_of_trials(
            self.seeds, listed, round, purpose, self._drawn_from, shape, self.augmentations, padded
        )
        return to_device(drawn, self.device)

    def cohort(self, ids: Tensor, indices: Tensor | None) -> Cohort:
        sizes = self.sizes.to(ids.device).gather(1, ids)
        shares = draws.shares(sizes, self.training.weights)
        return Cohort(ids, self._of(self.data, ids), indices, shares, sizes, self.rounds_done)

    def _of(self, split: Split, ids: Tensor) -> Split:
        if ids is self.everyone:
            return split
        trial = torch.arange(self.trials, device=ids.device)[:, None]
        return Split(*(part[trial, ids] for part in split))

    def tests_of(self, ids: Tensor) -> list[Split]:
        """The tests of these clients; those that share their inputs go on doing so."""
        if ids is self.tested_clients and not self.samples_clients:
            return list(self.tests.values())
        trial = torch.arange(self.trials, device=ids.device)[:, None]
        inputs = {id(test.x): test.x[trial, ids] for test in self.tests.values()}
        return [Split(inputs[id(test.x)], test.y[trial, ids], test.context[trial, ids]) for test in self.tests.values()]

    def set_contexts(self, context: Tensor) -> None:
        """Training contexts [T, N, M] that clients inferred anew."""
        self.data.context.copy_(context)  # in place: a recorded round reads this very tensor

    # States --------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything needed to resume from here, by name."""
        saved = tree.named_leaves(tree.over(torch.clone, self.server), "server") | self.store.snapshot()
        return saved | {"broken": self.broken.clone(), "rounds_done": torch.tensor(self.rounds_done)}

    def restore(self, saved: dict[str, Tensor]) -> None:
        self.server = tree.fill(self.server, saved, "server")
        if not torch.isfinite(self.server.round).all():
            raise ValueError("the number of rounds is no number")
        self.store.restore(saved)
        self.broken = saved["broken"].to(self.device)
        self.rounds_done = int(saved["rounds_done"])
        self._recorded = None

    def advance(self, cohort: Cohort) -> Tensor:
        """One round of these clients; their risks."""
        combined, risks, states = self.executor.clients(self.server, self.states_of(cohort.ids), cohort)
        self.server = self.executor.server(self.server, combined, risks, cohort.ids)
        fine = self._finite(risks, states)
        self._put(cohort.ids, states)
        self.broken = torch.where((self.broken < 0) & ~fine, self.server.round.long(), self.broken)
        return risks

    def _finite(self, risks: Tensor, states: ClientState | list[list[ClientState]]) -> Tensor:
        """[T] whether the risks, the global and the personal models are still numbers.

        One small leaf tells: a loss that is not finite makes the gradient of the last layer so.
        """
        fine = torch.isfinite(_smallest(self.server.params)).flatten(1).all(1)
        if self.algorithms[0].recovers:
            return fine
        fine = fine & torch.isfinite(risks).all(1)
        first = states if isinstance(states, ClientState) else states[0][0]
        if not first.personal:
            return fine
        leaf = _smallest(first.personal)
        if not isinstance(states, ClientState):
            leaf = torch.stack([torch.stack([_smallest(state.personal) for state in row]) for row in states])
        return fine & torch.isfinite(leaf).flatten(1).all(1)

    def states_of(self, ids: Tensor) -> object:
        """Of the clients ids [T, n], as the executor takes them."""
        states = self.store.take(ids)
        if isinstance(states, list) and isinstance(self.executor, Batched):
            stacked = tree.stack([tree.stack(row) for row in states])
            return tree.over(lambda leaf: leaf.to(self.device), stacked)
        return states

    def _put(self, ids: Tensor, states: object) -> None:
        if isinstance(self.store, PerClientStore) and isinstance(self.executor, Batched):
            states = unstack(states, *ids.shape)
        self.store.put(ids, states)  # type: ignore[arg-type]

    def _rest_folder(self, folder: Path | None) -> Path | None:
        if self.training.at_rest == "memory":
            return None
        if folder is None:
            raise UserError('training.at_rest = "disk" needs an output folder to keep the states in.')
        return folder


def _to_each(params: Params, clients: int) -> Params:
    """[T, ...] -> [T, n, ...], the same for each client."""
    return tree.map(lambda leaf: leaf[:, None].expand(leaf.shape[0], clients, *leaf.shape[1:]), params)


def _smallest(params: Params) -> Tensor:
    return min(params.values(), key=lambda leaf: leaf.numel())
