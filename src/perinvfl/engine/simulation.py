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
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm, ClientState, ServerState
from perinvfl.core import tree
from perinvfl.core.hyper import hyper
from perinvfl.core.seeding import generator
from perinvfl.core.tree import Params
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.executors import Batched, Executor, Loop, Task, Unrolled, check_alike
from perinvfl.engine.store import PerClientStore, Stacked, unstack
from perinvfl.errors import UserError
from perinvfl.learning import shortcut
from perinvfl.learning.problem import Problem, Step, autograd_gradient, compiled_descent, descend, functional_gradient
from perinvfl.models import Model, ModelSettings, Precision, build_model, mix_statistics


@dataclass(frozen=True)
class Training:
    """How a run is carried out, whatever the algorithm."""

    rounds: int = hyper(100, "communication rounds", symbol="T", least=1)
    batch_size: int = hyper(0, "samples in a batch, drawn with replacement; 0 is all of a client's data", least=0)
    fraction: float = hyper(1.0, "share of the clients that take part in a round", above=0, most=1)
    weights: Literal["uniform", "samples"] = hyper("uniform", "weight of a client in the mean (the paper's is uniform)")
    evaluate_every: int = hyper(10, "rounds between evaluations; the last round is always evaluated", least=1)
    executor: Literal["auto", "vmap", "loop"] = hyper("auto", "all clients as one program, or one after another")
    device: Literal["auto", "cpu", "cuda"] = hyper("auto", "where to train")
    precision: Precision = hyper("float32", "arithmetic of the matrix products")
    compile: bool = hyper(
        False, "compile the local steps (loop executor, needs a C++ compiler): faster on small batches"
    )
    at_rest: Literal["memory", "disk"] = hyper("memory", "where states of clients that sit out are kept")


STATISTICS_SAMPLES = 256  # of each client's training data, to measure what a batch norm predicts with


class Simulation:
    """T trials of one algorithm, each with its own settings and seed, in step with each other."""

    def __init__(
        self,
        algorithms: Sequence[Algorithm],
        federations: list[Federation],  # one for all trials, or one a trial
        seeds: list[int],
        training: Training = Training(),
        model: ModelSettings | Model = ModelSettings(),
        folder: Path | None = None,  # for states at rest on disk
    ) -> None:
        self.training, self.seeds, self.federation = training, seeds, federations[0]
        self.device = pick_device(training.device)
        self.trials, self.clients = len(algorithms), self.federation.clients
        check_alike(algorithms)
        largest = max(int(federation.sizes.max()) for federation in federations)
        if training.batch_size > largest:
            raise UserError(
                f"training.batch_size = {training.batch_size}: no client has more than {largest} samples; 0 takes all."
            )
        self.everyone = torch.arange(self.clients, device=self.device).expand(self.trials, -1)  # [T, N]
        if training.precision == "tf32":
            torch.backends.cuda.matmul.allow_tf32 = True
        if isinstance(model, ModelSettings):
            model = build_model(model, self.federation.shape, self.federation.outputs, training.precision)
        self.model = model
        batched = pick_batched(training, self.device, model)
        self.problem = Problem(
            model=self.model,
            task=self.federation.task,
            contexts=self.federation.contexts,
            paired=training.batch_size > 0,
            # Batches are drawn from real samples only.
            padded=training.batch_size == 0 and any(bool((f.train.context < 0).any()) for f in federations),
            gradient_of=functional_gradient if batched or training.compile else autograd_gradient,
            descent=pick_descent(training, batched),
            augmentation=self.federation.augmentation,
            groups=len(self.federation.groups),
            split=self.federation.split,
            even_classes=self.federation.even_classes,
        )
        self._check_images()
        self.algorithms = algorithms
        # On a GPU a loop is recorded and replayed like a batched program, and so its states are stacked like one's.
        unrolled = not batched and self.device.type == "cuda" and not training.compile
        stacked = batched or unrolled
        self.executor: Executor
        if stacked:
            kind = Unrolled if unrolled else Batched
            self.executor = kind(algorithms, self.problem, self.clients, self.device)
        else:
            workers = torch.get_num_threads() if self.device.type == "cpu" else 1
            self.executor = Loop(algorithms, self.problem, workers)
        dtype = torch.bfloat16 if training.precision == "bfloat16" else torch.float32
        self.data = _stack_splits([f.train for f in federations], self.trials, self.device, dtype)
        shared: dict[tuple[int, ...], Tensor] = {}  # tests that share their inputs go on doing so
        self.tests = {
            name: _stack_splits([f.tests[name] for f in federations], self.trials, self.device, dtype, shared)
            for name in self.federation.tests
        }
        if self.federation.validation is not None:
            held_out = [f.validation for f in federations if f.validation is not None]
            self.tests["validation"] = _stack_splits(held_out, self.trials, self.device, dtype, shared)
        for name in self.federation.inferred:
            parts = [f.inferred[name] for f in federations]
            self.tests[name] = _stack_splits(parts, self.trials, self.device, dtype, shared)
        # [T, N] by test: clients that have a sample of it; a client without any has no score.
        self.tested = {name: (test.context >= 0).any(-1).cpu() for name, test in self.tests.items()}
        self.sizes = torch.stack([f.sizes for f in federations]).expand(self.trials, -1)  # [T, N]

        starts = [
            tree.map(lambda leaf: leaf.to(self.device), self.model.init(generator(seed, "weights"))) for seed in seeds
        ]
        pairs = list(zip(algorithms, starts, strict=True))
        self.server: ServerState = tree.stack([a.init_server(params, self.clients) for a, params in pairs])
        client_states = [a.init_client(params, self.federation.contexts) for a, params in pairs]
        self.store: Stacked | PerClientStore
        if stacked and training.at_rest == "memory":
            self.store = Stacked(tree.stack(client_states), self.clients, self.everyone)
        else:
            at_rest = [tree.over(lambda leaf: leaf.cpu(), state) for state in client_states]
            self.store = PerClientStore(at_rest if stacked else client_states, self.clients, self._rest_folder(folder))
        self.rounds_done = 0
        # [T] the round after which a trial was no longer finite; -1 while all is well.
        self.broken = torch.full((self.trials,), -1, device=self.device)
        if stacked and training.fraction == 1:
            self.data = Split(*(part.contiguous() for part in self.data))
        if self.federation.infer_every:
            self.data = self.data._replace(context=self.data.context.clone())
        self._graph: _Graph | None = None
        self._can_capture = self.device.type == "cuda" and isinstance(self.store, Stacked) and training.fraction == 1

    def round(self) -> Tensor:
        """Do one round; the risks R(ν^t; D_i) of the clients that took part, [T, n]."""
        t = self.rounds_done
        if self.federation.infer_every and t and t % self.federation.infer_every == 0:
            self._infer_again()
        ids = self.participants(t)
        places = self.places(t, ids, self.algorithms[0].batches_per_round(), "batches")
        if self._can_capture:
            if self._graph is None:
                self._graph = _Graph(self, ids, places)
            risks = self._graph.replay(places)
        else:
            risks = self._advance(self._task(ids, places))
        self.rounds_done += 1
        return risks

    def evaluate(self, client_chunk: int = 64) -> dict[str, dict[str, Tensor]]:
        """{"personal" | "global": {test context: [T, N]}} accuracy (mean squared error for regression).

        Not a number for a client that has no sample of a test context. Where tests have groups also {"personal groups"
        | "global groups": {test context: [T, N, groups]}}, the number of right answers.
        """
        kinds = [kind for kind in ("personal", "global") if getattr(self.algorithms[0], f"has_{kind}")]
        columns: dict[str, list[Tensor]] = {kind: [] for kind in kinds}
        for first in range(0, self.clients, client_chunk):
            ids = self.everyone[:, first : first + client_chunk] if self.clients > client_chunk else self.everyone
            tests = [self._share(test, ids) for test in self.tests.values()]
            for kind in kinds:
                params = self.models_of(kind, ids)
                fine = torch.isfinite(_smallest(params)).flatten(1).all(1)  # fine-tuning may break what was sound
                self.broken.copy_(torch.where((self.broken < 0) & ~fine, self.rounds_done, self.broken))
                columns[kind].append(self.executor.measure(params, tests))
        measured = {kind: torch.cat(parts, 1).cpu() for kind, parts in columns.items()}  # [T, N, tests, 1 + groups]
        absent = float("nan")
        told = {
            kind: {
                name: torch.where(self.tested[name], scores, absent)
                for name, scores in zip(self.tests, table[..., 0].unbind(-1), strict=True)
            }
            for kind, table in measured.items()
        }
        if self.federation.groups:
            for kind, table in measured.items():
                counts = dict(zip(self.tests, table[..., 1:].unbind(-2), strict=True))
                told[f"{kind} groups"] = {name: counts[name] for name in self.federation.tests}
        return told

    def personal_models(self, ids: Tensor) -> Params:
        """What the clients ids [T, n] predict with now, [T, n, ...]."""
        steps = self.algorithms[0].batches_at_end()
        places = self.places(self.rounds_done, ids, steps, "fine-tuning") if steps else None
        return self.executor.personal(self.server, self._take(ids), self._task(ids, places))

    def models_of(self, kind: str, ids: Tensor) -> Params:
        """The "personal" or the "global" model as the clients ids [T, n] predict with it, [T, n, ...]."""
        return self._personal_for(ids) if kind == "personal" else self._global_for(ids)

    def _personal_for(self, ids: Tensor) -> Params:
        """Personal models as they predict: with the statistics of their own client's data, if they have any."""
        params = self.personal_models(ids)
        return params if self.model.statistics is None else params | self._statistics(params, ids)

    def _global_for(self, ids: Tensor) -> Params:
        """The global model as each client predicts with it, with statistics mixed from all clients, if it has any."""
        params = self.server.params
        if self.model.statistics is not None:
            # One client at a time: only the statistics are kept of each.
            each = [self._statistics(_to_each(params, 1), self.everyone[:, i : i + 1]) for i in range(self.clients)]
            together = {name: torch.cat([part[name] for part in each], 1) for name in each[0]}
            params = params | mix_statistics(together, self._task(self.everyone, None).weights)
        return _to_each(params, ids.shape[1])

    def _statistics(self, params: Params, ids: Tensor) -> Params:
        """Of models [T, n, ...], on evenly spaced training samples of the clients ids [T, n], none of them padding."""
        sizes = self.sizes.to(ids.device).gather(1, ids)
        places = torch.arange(STATISTICS_SAMPLES, device=ids.device) * sizes[..., None] // STATISTICS_SAMPLES
        trial = torch.arange(self.trials, device=ids.device)[:, None, None]
        return self.executor.statistics(params, self.data.x[trial, ids[..., None], places])

    def participants(self, round: int) -> Tensor:
        """[T, n] who takes part."""
        count = max(1, round_half_up(self.training.fraction * self.clients))
        if count == self.clients:
            return self.everyone
        drawn = [
            torch.randperm(self.clients, generator=generator(seed, "participants", round))[:count].sort().values
            for seed in self.seeds
        ]
        return torch.stack(drawn).to(self.device)

    def places(self, round: int, ids: Tensor, steps: int, purpose: str) -> Tensor | None:
        """[T, n, steps, B] drawn by (seed, client, round) alone, so that a deployed client draws the same."""
        size = self.training.batch_size
        if size == 0:
            return None
        drawn: dict[tuple[int, int], Tensor] = {}  # trials of one seed draw alike
        for t, seed in enumerate(self.seeds):
            for i in ids[t].tolist():
                if (seed, i) not in drawn:
                    drawn[seed, i] = self._draw(seed, i, int(self.sizes[t, i]), (steps, size), round, purpose)
        rows = [drawn[seed, i] for t, seed in enumerate(self.seeds) for i in ids[t].tolist()]
        return torch.stack(rows).unflatten(0, (self.trials, -1)).to(self.device)

    def _draw(self, seed: int, i: int, samples: int, shape: tuple[int, int], round: int, purpose: str) -> Tensor:
        """Places in one client's data and, where images are augmented, the view of each."""
        places = torch.randint(samples, shape, generator=generator(seed, purpose, i, round))
        views = self.federation.augmentation.views
        if views > 1:
            drawn = torch.randint(views, shape, generator=generator(seed, "views", purpose, i, round))
            places += self.data.y.shape[-1] * drawn
        return places

    def _check_images(self) -> None:
        if self.training.batch_size == 0 and self.federation.augmentation.views > 1:
            raise UserError("data.flip, data.crop and data.middle need mini-batches; set training.batch_size.")
        if self.problem.padded and self.model.statistics is not None:
            raise UserError('model.norm = "batch" with clients of different sizes needs training.batch_size above 0.')

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on from here, by name."""
        saved = tree.named_leaves(tree.over(torch.clone, self.server), "server") | self.store.snapshot()
        if self.federation.infer_every:
            saved["contexts"] = self.data.context.clone()
        return saved | {"broken": self.broken.clone(), "rounds_done": torch.tensor(self.rounds_done)}

    def restore(self, saved: dict[str, Tensor]) -> None:
        self.server = tree.fill(self.server, saved, "server")
        self.store.restore(saved)
        self.broken = saved["broken"].to(self.device)
        if self.federation.infer_every:
            self.data.context.copy_(saved["contexts"])
        self.rounds_done = int(saved["rounds_done"])
        self._graph = None

    def _infer_again(self) -> None:
        """Each client splits its samples anew by the global model it has just received."""
        fresh = torch.empty_like(self.data.context)
        for i in range(self.clients):
            logits = self.executor.predict(self._global_for(self.everyone[:, i : i + 1]), self.data.x[:, i : i + 1])
            wrong = shortcut.is_wrong(self.federation.task, logits[:, 0], self.data.y[:, i])
            fresh[:, i] = shortcut.split_context(shortcut.given_context(self.data.context[:, i]), wrong)
        self.data.context.copy_(fresh)  # in place: a captured round reads this very tensor

    def _advance(self, task: Task) -> Tensor:
        states = self._take(task.ids)
        update, risks, states = self.executor.clients(self.server, states, task)
        self.server = self.executor.server(self.server, update, risks, task.ids)
        fine = self._finite(risks, states)
        self._put(task.ids, states)
        self.broken = torch.where((self.broken < 0) & ~fine, self.server.round.long(), self.broken)
        return risks

    def _finite(self, risks: Tensor, states: ClientState | list[list[ClientState]]) -> Tensor:
        """[T] whether the risks, the global and the personal models are still numbers.

        One small leaf tells: a loss that is not finite makes the gradient of the last layer so.
        """
        fine = torch.isfinite(risks).all(1) & torch.isfinite(_smallest(self.server.params)).flatten(1).all(1)
        first = states if isinstance(states, ClientState) else states[0][0]
        if not first.personal:
            return fine
        leaf = _smallest(first.personal)
        if not isinstance(states, ClientState):
            leaf = torch.stack([torch.stack([_smallest(state.personal) for state in row]) for row in states])
        return fine & torch.isfinite(leaf).flatten(1).all(1)

    def _task(self, ids: Tensor, places: Tensor | None) -> Task:
        if self.training.weights == "samples":
            sizes = self.sizes.to(ids.device).gather(1, ids).float()
            weights = sizes / sizes.sum(1, keepdim=True)
        else:
            weights = torch.full(ids.shape, 1 / ids.shape[1], device=ids.device)
        return Task(ids, self._share(self.data, ids), places, weights)

    def _share(self, split: Split, ids: Tensor) -> Split:
        if ids is self.everyone:
            return split
        trial = torch.arange(self.trials, device=ids.device)[:, None]
        return Split(*(part[trial, ids] for part in split))

    def _take(self, ids: Tensor) -> object:
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


class _Graph:
    """One round captured as a CUDA graph: launch overhead, most of a small round's time, is paid once."""

    def __init__(self, simulation: Simulation, ids: Tensor, places: Tensor | None) -> None:
        self.places = None if places is None else places.clone()
        self.task = task = simulation._task(ids, self.places)  # kept: the graph reads these tensors at every replay
        kept = tree.over(torch.clone, (simulation.server, simulation.store.states, simulation.broken))  # type: ignore[union-attr]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                simulation._advance(task)
        torch.cuda.current_stream().wait_stream(stream)
        server, states, simulation.broken = kept
        tree.over(lambda now, was: now.copy_(was), simulation.store.states, states)  # type: ignore[union-attr]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            simulation.server = server
            self.risks = simulation._advance(task)
            tree.over(lambda now, new: now.copy_(new), (server, kept[2]), (simulation.server, simulation.broken))
        simulation.server, simulation.broken = server, kept[2]

    def replay(self, places: Tensor | None) -> Tensor:
        if self.places is not None and places is not None:
            self.places.copy_(places)
        self.graph.replay()
        return self.risks


def time_executors(
    algorithms: Sequence[Algorithm],
    federations: list[Federation],
    seeds: list[int],
    training: Training,
    model: ModelSettings,
) -> dict[str, float]:
    """Seconds of one round by executor on this device; infinite where it does not fit into memory."""
    seconds = {}
    for kind in ("vmap", "loop"):
        # One after another, each trial takes as long as the first: one tells for all.
        trials = len(algorithms) if kind == "vmap" else 1
        # States at rest on disk are left alone; what is timed is the arithmetic.
        asked = dataclasses.replace(training, executor=kind, at_rest="memory")
        try:
            rival = Simulation(algorithms[:trials], federations[:trials], seeds[:trials], asked, model)
            seconds[kind] = _round_seconds(rival) * len(algorithms) / trials
            del rival
        except torch.cuda.OutOfMemoryError:
            seconds[kind] = math.inf
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return seconds


def fastest(seconds: dict[str, float]) -> str:
    return min(seconds, key=lambda kind: seconds[kind])


def _round_seconds(simulation: Simulation) -> float:
    """Of the second round: the first one also prepares."""
    began = 0.0
    for _ in range(2):
        began = time.perf_counter()
        float(simulation.round().sum())  # waits for the device
    return time.perf_counter() - began


def pick_device(asked: str) -> torch.device:
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError('training.device = "cuda": no CUDA device is available here; use "cpu" or "auto".')
    return torch.device("cuda" if asked == "cuda" or (asked == "auto" and torch.cuda.is_available()) else "cpu")


def pick_batched(training: Training, device: torch.device, model: Model) -> bool:
    """Whether all clients run as one program; a model that cannot says so and runs one client after another."""
    wanted = training.executor == "vmap" or (training.executor == "auto" and device.type == "cuda")
    if wanted and model.unmapped:
        warnings.warn(
            f"The model cannot run for many clients at once ({model.unmapped}): training.executor is loop.",
            stacklevel=3,
        )
        return False
    return wanted


def pick_descent(training: Training, batched: bool) -> Callable[..., Step]:
    """A step as it is, or compiled."""
    if not training.compile:
        return descend
    if batched:
        raise UserError('training.compile = true goes with training.executor = "loop".')
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))):
        raise UserError("training.compile = true needs a C++ compiler (g++ or clang++), and none is installed here.")
    return compiled_descent()


def round_half_up(value: float) -> int:
    return int(value + 0.5)


def _to_each(params: Params, clients: int) -> Params:
    """[T, ...] -> [T, n, ...], the same for each client."""
    return tree.map(lambda leaf: leaf[:, None].expand(leaf.shape[0], clients, *leaf.shape[1:]), params)


def _smallest(params: Params) -> Tensor:
    return min(params.values(), key=lambda leaf: leaf.numel())


def _lengthen(part: Tensor, samples: int, padding: int) -> Tensor:
    """[N, M, ...] with M made up to so many samples."""
    more = part.new_full((part.shape[0], samples - part.shape[1], *part.shape[2:]), padding)
    return torch.cat([part, more], 1)


def _stack_splits(
    splits: list[Split],
    trials: int,
    device: torch.device,
    dtype: torch.dtype,
    shared: dict[tuple[int, ...], Tensor] | None = None,  # inputs stacked before
) -> Split:
    """[T, N, M, ...]; one split for all trials is shown to each without a copy. uint8 images stay as they are."""

    longest = max(s.y.shape[1] for s in splits)

    def stacked(parts: list[Tensor], padding: int = 0) -> Tensor:
        if len(parts) == 1:
            return parts[0].expand(trials, *parts[0].shape)
        return torch.stack([_lengthen(part, longest, padding) for part in parts])

    key, shared = tuple(id(s.x) for s in splits), {} if shared is None else shared
    if key not in shared:
        images = splits[0].x.dtype == torch.uint8
        shared[key] = stacked([s.x.to(device, None if images else dtype) for s in splits])
    return Split(
        shared[key], stacked([s.y.to(device) for s in splits]), stacked([s.context.to(device) for s in splits], -1)
    )
