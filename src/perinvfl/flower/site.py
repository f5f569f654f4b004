"""What happens at a site: its data, its personal model on its own disk, and its part in a round. No network here.

A site's state of a run is kept twice. `pending` is what the last round it took part in made of it, `committed` what the
server is known to have used. Whether the server used a round is told with the next thing it asks, as the last round of
this site that counts; only then does pending take the place of committed, by one rename. So a round that was lost, came
too late or was refused does not advance θ_i, and a site killed at any point is either before a step or after it.
"""

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms import ALGORITHMS
from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState, Upload
from perinvfl.core import checkpoint, config, tree
from perinvfl.core.seeding import generator
from perinvfl.core.tree import Params
from perinvfl.data.constant import constant_scores
from perinvfl.data.federation import Federation, Split, Task
from perinvfl.data.own.readers import ARRAYS, TABLES, read_arrays
from perinvfl.data.own.sites import SitesSettings, site_federation
from perinvfl.data.registry import BENCHMARKS, build_federation
from perinvfl.engine.executors import for_client
from perinvfl.engine.simulation import Training, pick_descent, pick_device
from perinvfl.errors import UserError
from perinvfl.flower import privacy
from perinvfl.learning import risks
from perinvfl.learning.problem import Batches, Problem, autograd_gradient, functional_gradient
from perinvfl.models import Model, ModelSettings, build_model

NEVER = -1  # the round before the first


class UnusableData(UserError):
    """What is wrong with a site's own file, in words for the site alone."""


@dataclass(frozen=True)
class SiteData:
    """One site's data, without padding."""

    train: Split  # [M, ...]
    tests: dict[str, Split]
    task: Task
    outputs: int
    spectrum: tuple[str, ...]

    @property
    def contexts(self) -> int:
        return int(self.train.context.max()) + 1

    def describe(self, scores: bool) -> dict[str, Any]:
        """What a site tells about itself when a run begins: the shape of its data, nothing of what is in them.

        scores: also how a constant answer would do on its test cases, for the table.
        """
        told: dict[str, Any] = {
            "shape": list(self.train.x.shape[1:]),
            "task": self.task,
            "outputs": self.outputs,
            "contexts": self.contexts,
            "tests": list(self.tests),
            "spectrum": list(self.spectrum),
        }
        if scores:
            stacked = {name: Split(*(part[None] for part in test)) for name, test in self.tests.items()}
            train = Split(*(part[None] for part in self.train))
            told["constant"] = {name: row[0] for name, row in constant_scores(self.task, train, stacked).items()}
        return told


@dataclass(frozen=True)
class Assignment:
    """What a server asks of one site, the model aside."""

    run: str  # names the run, the same after the server was killed and resumed it
    asked: dict[str, Any]  # the trial, as in the records
    client: int  # which client of the trial this site is
    clients: int  # N
    contexts: int  # K
    round: int  # t; at an evaluation, the number of rounds done
    used: int  # the last round of this site that the server used
    weight: float  # N q_i for GroupDRO
    noise: tuple[float, float] | None = None  # multiplier and clip of differential privacy
    tell_risk: bool = True

    @property
    def trial(self) -> str:
        """Everything that stays the same from round to round, as one text."""
        return json.dumps([self.asked, self.client, self.clients, self.contexts], sort_keys=True)


class StateStore:
    """The site's states of its runs on disk, one folder a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, run: str) -> Path:
        if not re.fullmatch(r"[\w.-]+", run) or run.startswith("."):
            raise ValueError(f"{run!r} cannot name a run")
        return self.folder / run

    def settle(self, run: str, used: int, initial: ClientState) -> ClientState:
        """The state that goes with the last round the server used: pending takes its place if it is that round's."""
        place = self.place(run)
        done, committed = self._read(place / "committed.pt", initial)
        if used == done:
            return initial if committed is None else committed
        if used < done:
            raise ValueError(f"round {done} of this site was used already, and this comes from before it")
        pending_round, pending = self._read(place / "pending.pt", initial)
        if pending is None or pending_round != used:
            raise ValueError(f"the state of round {used} is not here: the site's folder is another, or was emptied")
        (place / "pending.pt").replace(place / "committed.pt")
        return pending

    def hold(self, run: str, round: int, state: ClientState) -> None:
        """Keep what a round made of the state until the server has used that round."""
        place = self.place(run)
        place.mkdir(parents=True, exist_ok=True)
        for torn in place.glob(".*.tmp"):  # left by a process that was killed while it wrote
            torn.unlink()
        named = tree.named_leaves(state, "client")
        checkpoint.save(place / "pending.pt", named | {"round": torch.tensor(round)})

    def _read(self, path: Path, template: ClientState) -> tuple[int, ClientState | None]:
        if not path.exists():
            return NEVER, None
        saved = checkpoint.load(path)
        return int(saved["round"]), tree.fill(template, saved, "client")


@dataclass(frozen=True)
class Worker:
    """One site's part in one trial."""

    share: SiteData
    algorithm: Algorithm
    training: Training
    model: Model
    problem: Problem
    seed: int
    client: int
    initial: ClientState
    device: torch.device

    def train(self, nu: Params, weight: float, round: int, state: ClientState) -> tuple[Upload, ClientState]:
        broadcast = self._broadcast(nu, weight, round)
        batches = self._batches("batches", round, self.algorithm.batches_per_round())
        with torch.no_grad():
            upload, state = self.algorithm.client_round(self.problem, broadcast, state, batches)
        return tree.over(lambda leaf: leaf.cpu(), upload), state

    def evaluate(self, nu: Params, weight: float, rounds: int, state: ClientState) -> dict[str, dict[str, float]]:
        """{"personal" | "global": {test case: accuracy, or mean squared error for regression}}."""
        models = {}
        if self.algorithm.has_personal:
            models["personal"] = self.personal(nu, weight, rounds, state)
        if self.algorithm.has_global:
            models["global"] = self._broadcast(nu, weight, rounds).params
        with torch.no_grad():
            return {
                kind: {name: self._measure(params, test) for name, test in self.share.tests.items()}
                for kind, params in models.items()
            }

    def personal(self, nu: Params, weight: float, rounds: int, state: ClientState) -> Params:
        """What this site predicts with."""
        steps = self.algorithm.batches_at_end()
        batches = self._batches("fine-tuning", rounds, steps) if steps else Batches(self.share.train, None)
        with torch.no_grad():
            return self.algorithm.personal(self.problem, self._broadcast(nu, weight, rounds), state, batches)

    def _broadcast(self, nu: Params, weight: float, round: int) -> Broadcast:
        moved = tree.map(lambda leaf: leaf.to(self.device), nu)
        return Broadcast(moved, torch.tensor(weight, device=self.device), round)

    def _measure(self, params: Params, test: Split) -> float:
        return float(risks.measure(self.problem.task, self.model.apply(params, test.x), test.y, test.context))

    def _batches(self, purpose: str, round: int, steps: int) -> Batches:
        """Drawn by (seed, client, round) alone, exactly as the simulator draws them."""
        size = self.training.batch_size
        if size == 0:
            return Batches(self.share.train, None)
        source = generator(self.seed, purpose, self.client, round)
        places = torch.randint(self.share.train.y.shape[0], (steps, size), generator=source)
        return Batches(self.share.train, places.to(self.device))


class Site:
    """A site that takes part: where its states are, and where its data come from."""

    def __init__(self, folder: Path, data: Path | None = None) -> None:
        self.folder, self.data = folder, data
        self.vault = StateStore(folder / "state")

    def describe(self, assignment: Assignment, scores: bool) -> dict[str, Any]:
        return load_share(self.data, assignment.trial).describe(scores)

    def train(self, assignment: Assignment, nu: Params) -> Upload:
        worker, state = self._ready(assignment, nu)
        upload, state = worker.train(nu, assignment.weight, assignment.round, state)
        if assignment.noise is not None:
            upload = upload._replace(update=self._noised(assignment, upload.update))
        self.vault.hold(assignment.run, assignment.round, state)  # on disk before anybody hears of the round
        return upload

    def evaluate(self, assignment: Assignment, nu: Params) -> dict[str, dict[str, float]]:
        worker, state = self._ready(assignment, nu)
        return worker.evaluate(nu, assignment.weight, assignment.round, state)

    def commit(self, assignment: Assignment, nu: Params) -> None:
        self._ready(assignment, nu)

    def samples(self, assignment: Assignment) -> int:
        return int(load_share(self.data, assignment.trial).train.y.shape[0])

    def _ready(self, assignment: Assignment, nu: Params) -> tuple[Worker, ClientState]:
        worker = make_worker(self.data, assignment.trial)
        expected = worker.model.init(generator(0, "shapes"))
        if {name: leaf.shape for name, leaf in expected.items()} != {name: leaf.shape for name, leaf in nu.items()}:
            raise ValueError("the model does not fit this site's data")
        return worker, self.vault.settle(assignment.run, assignment.used, worker.initial)

    def _noised(self, assignment: Assignment, update: Params) -> Params:
        """Asked twice for the same round, a site gives the same noise: two draws would tell more than one."""
        assert assignment.noise is not None
        multiplier, clip = assignment.noise
        purpose = f"{assignment.run} {assignment.round}".encode()
        digest = hmac.digest(self._secret(), purpose, hashlib.sha256)
        source = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return privacy.add_noise(privacy.clip(update, clip), multiplier * clip, source)

    def _secret(self) -> bytes:
        """Known to this site alone, so that nobody else can subtract its noise."""
        path = self.folder / "noise.key"
        if not path.exists():
            from perinvfl.flower.credentials import write_secret

            self.folder.mkdir(parents=True, exist_ok=True)
            write_secret(path, privacy.fresh_secret())
        return path.read_bytes()


@lru_cache(maxsize=4)
def make_worker(data: Path | None, trial: str) -> Worker:
    share = load_share(data, trial)
    asked, client, _, contexts = json.loads(trial)
    settings = dict(asked["algorithm"])
    name, _ = settings.pop("name"), settings.pop("label", None)
    algorithm = for_client(config.build(ALGORITHMS[name], settings, "algorithm"), client)
    training = config.build(Training, asked["training"], "training")
    device = pick_device(training.device)
    shape = tuple(share.train.x.shape[1:])
    model = build_model(config.build(ModelSettings, asked["model"], "model"), shape, share.outputs, training.precision)
    if share.contexts > contexts:
        raise ValueError(f"this site has {share.contexts} contexts, and the run was begun with at most {contexts}")
    problem = Problem(
        model=model,
        task=share.task,
        contexts=contexts,
        paired=training.batch_size > 0,
        padded=False,
        gradient_of=functional_gradient if training.compile else autograd_gradient,
        descent=pick_descent(training, batched=False),
    )
    seed = asked["seed"]
    start = tree.map(lambda leaf: leaf.to(device), model.init(generator(seed, "weights")))
    cast = torch.bfloat16 if training.precision == "bfloat16" else torch.float32

    def ready(split: Split) -> Split:
        return Split(split.x.to(device, cast), split.y.to(device), split.context.to(device))

    prepared = SiteData(
        ready(share.train),
        {case: ready(test) for case, test in share.tests.items()},
        share.task,
        share.outputs,
        share.spectrum,
    )
    initial = algorithm.init_client(start, contexts)
    return Worker(prepared, algorithm, training, model, problem, seed, client, initial, device)


@lru_cache(maxsize=4)
def load_share(data: Path | None, trial: str) -> SiteData:
    """The site's data: its file, or its own client of the benchmark that the experiment names."""
    asked, client, _, _ = json.loads(trial)
    settings = dict(asked["data"])
    benchmark = settings.pop("benchmark")
    chosen: Any = config.build(BENCHMARKS[benchmark].settings, settings, "data")
    if data is not None:
        try:
            return _own_share(data, chosen, asked["seed"])
        except UserError as error:
            raise UnusableData(str(error)) from None
    if isinstance(chosen, SitesSettings):
        raise UserError('data.benchmark = "sites": this site was started without --data FILE, so it has no data.')
    return _client_share(build_federation(benchmark, chosen, asked["seed"]), client)


def _own_share(data: Path, settings: Any, seed: int) -> SiteData:
    """A site's file. Arrays bring their own tests, unless contexts of them are to be held out."""
    arrays = not data.is_dir() and data.suffix.lower() not in TABLES
    if isinstance(settings, SitesSettings) and (settings.held_out or not arrays):
        if arrays and any(key.startswith("test/") for key in _read_arrays(data)):
            raise UserError(
                f"{data} brings tests of its own (test/NAME/x), and data.test_contexts holds contexts out; use one."
            )
        return _client_share(site_federation(settings, data, seed), 0, settings.spectrum)
    return read_share(
        data, getattr(settings, "task", "binary"), getattr(settings, "outputs", 1), getattr(settings, "spectrum", ())
    )


def _client_share(federation: Federation, client: int, spectrum: tuple[str, ...] = ()) -> SiteData:
    """One client's part of a federation."""
    tests = dict(federation.tests)
    if federation.validation is not None:
        tests["validation"] = federation.validation
    return SiteData(
        _own(federation.train, client),
        {name: _own(test, client) for name, test in tests.items()},
        federation.task,
        federation.outputs,
        spectrum or federation.spectrum,
    )


def read_share(path: Path, task: Task, outputs: int, spectrum: tuple[str, ...]) -> SiteData:
    """A file of arrays, .npz or .safetensors: x [M, ...], y [M], perhaps context [M]; test/NAME/x and test/NAME/y."""
    arrays = _read_arrays(path)
    train = _split(path, arrays, "", task, outputs)
    names = list(dict.fromkeys(key.split("/")[1] for key in arrays if key.startswith("test/") and key.count("/") == 2))
    tests = {name: _split(path, arrays, f"test/{name}/", task, outputs) for name in names}
    for name, test in tests.items():
        if test.x.shape[1:] != train.x.shape[1:]:
            raise UserError(f"{path}: test/{name}/x has samples of another shape than x.")
    missing = [name for name in spectrum if name not in tests]
    if missing:
        raise UserError(f"{path}: data.spectrum names the test case {missing[0]}, and there is no test/{missing[0]}/x.")
    return SiteData(train, tests, task, outputs, tuple(spectrum) or tuple(tests))


def _read_arrays(path: Path) -> dict[str, Tensor]:
    if path.suffix.lower() not in ARRAYS:
        raise UserError(
            f"{path}: the site's data must be a .npz or .safetensors file, a table ({', '.join(TABLES)}) or a folder."
        )
    if not path.exists():
        raise UserError(f"{path} does not exist; give the site's arrays, its table or its folder of photographs.")
    arrays = read_arrays(path)
    try:
        return {name: torch.as_tensor(values) for name, values in arrays.items()}
    except TypeError as error:
        raise UserError(f"{path} holds something else than numbers: {error}.") from None


def _split(path: Path, arrays: dict[str, Tensor], prefix: str, task: Task, outputs: int) -> Split:
    for key in ("x", "y"):
        if prefix + key not in arrays:
            raise UserError(f"{path} has no array {prefix}{key}; x [samples, ...] and y [samples] are needed.")
    x, y = arrays[prefix + "x"].float(), arrays[prefix + "y"]
    if y.dim() != 1 or x.dim() < 2 or x.shape[0] != y.shape[0] or y.shape[0] == 0:
        raise UserError(
            f"{path}: {prefix}x is {list(x.shape)} and {prefix}y {list(y.shape)}; must be [samples, ...] and [samples]."
        )
    context = arrays.get(prefix + "context", torch.zeros(y.shape[0])).long()
    if context.shape != y.shape or int(context.min()) < 0 or int(context.max()) >= len(y):
        raise UserError(f"{path}: {prefix}context must be one whole number a sample, counted from 0.")
    if not bool(torch.isfinite(x).all()) or not bool(torch.isfinite(y.float()).all()):
        raise UserError(f"{path}: {prefix}x and {prefix}y must be finite numbers.")
    if task == "multiclass":
        if bool((y.long() != y).any()) or int(y.min()) < 0 or int(y.max()) >= outputs:
            raise UserError(f"{path}: {prefix}y must be classes 0 to {outputs - 1}.")
        return Split(x, y.long(), context)
    if task == "binary" and bool(((y != 0) & (y != 1)).any()):
        raise UserError(f"{path}: {prefix}y must be 0 or 1.")
    return Split(x, y.float(), context)


def _own(split: Split, client: int) -> Split:
    """One client's real samples, in memory of their own, so that the others' can go."""
    real = split.context[client] >= 0
    return Split(*(part[client][real].clone() for part in split))
