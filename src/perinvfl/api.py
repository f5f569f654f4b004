"""The library from Python: data in, rounds one by one, scores and predictions out.

>>> import perinvfl as pf
>>> federation = pf.load("random", clients=3, samples=40)
>>> session = pf.start(federation, pf.algorithm("fedavg", learning_rate=0.5), rounds=3, model={"hidden": [8]})
>>> for round in session:
...     print(round.number, sorted(round.risks))
1 ['0', '1', '2']
2 ['0', '1', '2']
3 ['0', '1', '2']
>>> sorted(session.evaluate())
['0.1', '0.5']
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms import ALGORITHMS
from perinvfl.algorithms.base import Algorithm
from perinvfl.core import checkpoint, config, files, tree
from perinvfl.data.federation import Federation, Origin
from perinvfl.data.own.files import Division, FileSettings, array_rows, federation_of
from perinvfl.data.own.readers import numbers_of
from perinvfl.data.own.rows import AskedTask
from perinvfl.data.registry import BENCHMARKS, build_federation
from perinvfl.engine.simulation import Simulation, Training
from perinvfl.errors import UserError
from perinvfl.learning.shortcut import read_contexts
from perinvfl.models import Model, ModelSettings, module
from perinvfl.models.symmetry import seeing
from perinvfl.preparation.alignment import prepared
from perinvfl.runs.experiment import PARTS, algorithm_named, build_experiment
from perinvfl.runs.records import CHECKPOINT, EVENTS, Event, read_run
from perinvfl.runs.train import start_fields
from perinvfl.runs.trial import Trial

Scores = dict[str, dict[str, float | None]]  # by test context and client; None: the client has no sample of it
Given = ModelSettings | dict[str, Any] | str | Callable[..., torch.nn.Module] | None


@dataclass(frozen=True)
class ArraySettings(Division):
    """How arrays were divided, and what was in them."""

    checksum: str = ""


@dataclass(frozen=True)
class Round:
    """What is known after a round."""

    number: int  # from 1
    risks: dict[str, float]  # R(ν; D_i) at the start of the round, of the clients that took part

    @property
    def risk(self) -> float:
        """The mean over the clients that took part."""
        return sum(self.risks.values()) / len(self.risks)


def load(source: str | Path, *, seed: int = 0, **settings: Any) -> Federation:
    """A file or folder of your own (settings as in `[data]`: label, client, context, ...) or a benchmark by its name.

    The seed draws what is held out.
    """
    if str(source) in BENCHMARKS and str(source) != "file":
        benchmark, kind, given = str(source), BENCHMARKS[str(source)].settings, settings
    else:
        benchmark, kind, given = "file", FileSettings, {"path": str(source), **settings}
    return build_federation(benchmark, config.build(kind, _plain(given), "data"), seed)


def from_arrays(
    x: Any,
    y: Any,
    *,
    client: Any = None,
    context: Any = None,
    features: Any = None,
    task: AskedTask = "auto",
    seed: int = 0,
    **division: Any,
) -> Federation:
    """From arrays, tensors, lists or a data frame: x [n, ...], y [n], and who and where each row is from.

    `division`: test_contexts, test_share, holdout, standardise, as in `[data]`.
    """
    rows = array_rows(x, y, client, context, task, features)
    told = repr((rows.task, rows.clients, rows.contexts, rows.classes, rows.features, tuple(rows.x.shape)))
    digest = hashlib.sha256(told.encode())
    for part in (rows.x, rows.y, rows.client, rows.context):
        digest.update(part.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    given = config.build(ArraySettings, _plain({**division, "checksum": digest.hexdigest()[:16]}), "data")
    if given.leave_one_context_out:
        raise UserError("leave_one_context_out makes several federations; name one context in test_contexts at a time.")
    federation = federation_of(rows, given, seed)
    return dataclasses.replace(federation, origin=Origin("arrays", given, seed))


def algorithm(name: str | type[Algorithm], **settings: Any) -> Algorithm:
    """An algorithm by its name in `perinvfl list`, as `module:Class`, or the class itself."""
    return _algorithm(name, settings)


def start(
    federation: Federation,
    algorithm: Algorithm | str = "perinvfl",
    *,
    rounds: int = 100,
    seed: int | None = None,
    model: Given = None,
    contexts: dict[str, Any] | None = None,
    **training: Any,
) -> "Session":
    """Get ready to train; nothing is trained until a round is asked for.

    model: settings as in `[model]`, `module:function`, or a function that makes a torch.nn.Module.
    contexts: settings as in `[contexts]`, to infer them. training: settings as in `[training]`.
    Without a seed, that of the federation.
    """
    if not isinstance(federation, Federation):
        raise UserError(f"start takes a federation, as load gives, and was given a {type(federation).__name__}.")
    chosen = _algorithm(algorithm, {}) if isinstance(algorithm, str) else algorithm
    if seed is None:
        seed = federation.origin.seed if federation.origin else 0
    settings = config.build(Training, _plain({**training, "rounds": rounds}), "training")
    origin = federation.origin or Origin(federation.name, ArraySettings(), seed)
    asked, made = _model(model, federation, settings)
    stage = read_contexts(contexts or {})
    if stage.infer != "given":
        federation = prepared(federation, seed, stage, made, settings)
    trial = Trial(
        origin.benchmark,
        origin.settings,
        asked,
        settings,
        _name_of(chosen),
        chosen.title,
        chosen,
        seed,
        contexts=stage,
    )
    return Session(federation, trial, made)


def resume(
    folder: str | Path, federation: Federation | None = None, *, model: Given = None, rounds: int | None = None
) -> "Session":
    """A session that was saved. Data that came from arrays, and a model that has no name, have to be given again."""
    folder = Path(folder)
    run = read_run(folder)
    if run is None or not (folder / CHECKPOINT).exists():
        raise UserError(f"{folder} holds no saved session; it must have {EVENTS} and {CHECKPOINT}.")
    asked = run.start["asked"]
    if rounds is not None:
        asked = {**asked, "training": {**asked["training"], "rounds": rounds}}
    if federation is None:
        if asked["data"]["benchmark"] not in BENCHMARKS:
            raise UserError(f"{folder} was trained on data that no file holds: give the federation again.")
        trial = build_experiment(_table(asked)).trials[0]
        federation = build_federation(trial.benchmark, trial.data, run.start.get("data_seed", asked["seed"]))
    elif federation.origin is not None:
        was, now = asked["data"].get("checksum"), getattr(federation.origin.settings, "checksum", None)
        if was != now:
            raise UserError(f"{folder} was trained on other data (checksum {was}, here {now}).")
    entry = {key: value for key, value in asked["algorithm"].items() if key not in ("name", "label")}
    session = start(
        federation,
        algorithm(asked["algorithm"]["name"], **entry),
        seed=asked["seed"],
        model=asked["model"] if model is None else model,
        contexts=asked.get("contexts"),
        **asked["training"],
    )
    session._restore(folder, run.events)
    return session


class Session:
    """One algorithm under way on one federation. Iterate it for the rounds that are left."""

    def __init__(self, federation: Federation, trial: Trial, model: ModelSettings | Model) -> None:
        self.federation, self.trial = federation, trial
        self._simulation = Simulation([trial.algorithm], [federation], [trial.seed], trial.training, model)
        self._evaluations: list[Event] = []
        self._last: Round | None = None
        self._seconds = 0.0

    @property
    def clients(self) -> tuple[str, ...]:
        return self.federation.client_names

    @property
    def rounds_done(self) -> int:
        return self._simulation.rounds_done

    def __iter__(self) -> Iterator[Round]:
        while self.rounds_done < self.trial.training.rounds:
            yield self.step()

    def step(self) -> Round:
        """One round, even beyond those asked for."""
        began = time.perf_counter()
        ids = self._simulation.participants(self.rounds_done)[0].tolist()
        risks = self._simulation.round()[0].tolist()
        self._seconds += time.perf_counter() - began
        if int(self._simulation.broken[0]) >= 0:
            raise UserError(
                f"{self.trial.label}: no longer finite after round {self.rounds_done}; "
                "smaller learning rates are the usual cure."
            )
        self._last = Round(self.rounds_done, {self.clients[i]: risk for i, risk in zip(ids, risks, strict=True)})
        return self._last

    def run(self) -> "Session":
        """All rounds that are left."""
        for _ in self:
            pass
        return self

    def evaluate(self, which: str = "") -> Scores:
        """Accuracy (mean squared error for a regression) by test context and client, of the personal models.

        which: "personal" or "global"; without it, what the clients predict with.
        """
        if not self._simulation.tests:
            raise UserError("Nothing was held out, so there is nothing to evaluate on; predict works.")
        measured = self._simulation.evaluate()
        kinds: dict[str, Scores] = {
            kind: {case: self._by_client(row[0]) for case, row in measured[kind].items()}
            for kind in ("personal", "global")
            if kind in measured
        }
        groups = {kind: cases for kind, cases in measured.items() if kind not in kinds}
        which = which or next(iter(kinds))
        if which not in kinds:
            raise UserError(f'evaluate("{which}"): {self.trial.label} has {" and ".join(kinds)} models.')
        self._evaluations = [event for event in self._evaluations if event["round"] < self.rounds_done]
        self._evaluations.append(
            {
                "event": "evaluation",
                "round": self.rounds_done,
                "seconds": round(self._seconds, 3),
                "risks": list(self._last.risks.values()) if self._last else [],
                **{k: {case: list(row.values()) for case, row in cases.items()} for k, cases in kinds.items()},
                **{k: {case: row[0].tolist() for case, row in cases.items()} for k, cases in groups.items()},
            }
        )
        return kinds[which]

    def parameters(self, client: str | None = None) -> dict[str, Tensor]:
        """What a client predicts with now; without a client, the global model."""
        return self._simulation.model.strip(self._model_of(client))

    def outputs(self, x: Any, client: str | None = None) -> Tensor:
        """[n, outputs] of a client's model for inputs as they were in the file; without a client, the global one's."""
        params, inputs = self._model_of(client), self._prepared(x).to(self._simulation.device)
        view = 0 if client is None else self.federation.view_of(self.clients.index(str(client)))
        with torch.no_grad():
            return seeing(self._simulation.model, view).apply(params, inputs).cpu()

    def predict_proba(self, x: Any, client: str | None = None) -> Tensor:
        """[n, classes]"""
        if self.federation.task == "regression":
            raise UserError("A regression has no classes; predict gives its values.")
        logits = self.outputs(x, client)
        if self.federation.task == "multiclass":
            return torch.softmax(logits, 1)
        one = torch.sigmoid(logits[:, 0])
        return torch.stack([1 - one, one], 1)

    def predict(self, x: Any, client: str | None = None) -> list[str] | Tensor:
        """Names of classes, or the values of a regression in the label's own unit."""
        if self.federation.task == "regression":
            schema = self.federation.schema
            return schema.label_mean + schema.label_scale * self.outputs(x, client)[:, 0].double()
        return [self.classes[place] for place in self.predict_proba(x, client).argmax(1).tolist()]

    @property
    def classes(self) -> tuple[str, ...]:
        number = max(self.federation.outputs, 2)
        return self.federation.schema.classes or tuple(str(place) for place in range(number))

    def save(self, folder: str | Path) -> Path:
        """All that is needed to go on, and a record that `perinvfl table` reads; `resume` takes it up again."""
        folder = Path(folder)
        there = read_run(folder)
        if there is not None and there.start["id"] != self.trial.id:
            raise UserError(f"{folder} holds another run; choose another folder.")
        with files.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        fields = start_fields(self.trial, self.federation, self._simulation, folder.name, 0)
        origin = self.federation.origin
        events: list[Event] = [{"event": "start", **fields, "data_seed": origin.seed if origin else self.trial.seed}]
        over = self.rounds_done >= self.trial.training.rounds
        evaluated = bool(self._evaluations) and self._evaluations[-1]["round"] == self.rounds_done
        if over and not evaluated and self._simulation.tests:
            self.evaluate()
            evaluated = True
        events += self._evaluations
        if over and evaluated:
            events.append({"event": "end", "round": self.rounds_done, "seconds": round(self._seconds, 3)})
        lines = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
        spent = torch.tensor(self._seconds, dtype=torch.float64)
        checkpoint.save(folder / CHECKPOINT, self._simulation.state() | {"seconds": spent})
        files.write_atomically(folder / EVENTS, lines.encode())
        return folder

    def _restore(self, folder: Path, events: list[Event]) -> None:
        saved = checkpoint.load(folder / CHECKPOINT)
        try:
            self._simulation.restore(saved)
            shapes = [leaf.shape for leaf in self._simulation.server.params.values()]
        except (KeyError, RuntimeError, ValueError) as error:
            raise UserError(f"{folder}: the saved models are not of this kind ({type(error).__name__}).") from error
        fresh = self._simulation.model.init(torch.Generator().manual_seed(0))
        if shapes != [(1, *leaf.shape) for leaf in fresh.values()]:
            raise UserError(f"{folder}: the saved models have other shapes than the model now makes.")
        self._seconds = float(saved["seconds"])
        self._evaluations = [event for event in events if event["event"] == "evaluation"]

    def _model_of(self, client: str | None) -> dict[str, Tensor]:
        if client is None and not self.trial.algorithm.has_global:
            raise UserError(f"{self.trial.label} has no global model; name a client.")
        if client is not None and str(client) not in self.clients:
            raise UserError(f'"{client}" is not a client{config.suggest(str(client), list(self.clients))}')
        number = 0 if client is None else self.clients.index(str(client))
        ids = torch.tensor([[number]], device=self._simulation.device)
        models = self._simulation.models_of("global" if client is None else "personal", ids)
        return tree.map(lambda leaf: leaf[0, 0], models)

    def _prepared(self, x: Any) -> Tensor:
        """Inputs as the model was trained on them."""
        schema = self.federation.schema
        names = list(getattr(x, "columns", []))
        if names and schema.features:
            missing = [name for name in schema.features if name not in names]
            if missing:
                raise UserError(f'The column "{missing[0]}" is missing from what is to be predicted.')
            x = x[list(schema.features)]
        inputs = numbers_of("x", x)
        if tuple(inputs.shape[1:]) != self.federation.shape:
            raise UserError(
                f"x has shape {list(inputs.shape)}; the model takes rows of shape {list(self.federation.shape)}."
            )
        wrong = (~torch.isfinite(inputs).flatten(1).all(1)).nonzero()
        if len(wrong):
            raise UserError(f"x: row {int(wrong[0]) + 1} holds a value that is not a finite number.")
        if schema.mean:
            mean, scale = (torch.tensor(values, dtype=torch.float64) for values in (schema.mean, schema.scale))
            inputs = (inputs.double() - mean) / scale
        return inputs.float()

    def _by_client(self, scores: Tensor) -> dict[str, float | None]:
        known = torch.isfinite(scores).tolist()
        return {
            name: round(score, 6) if fine else None
            for name, score, fine in zip(self.clients, scores.tolist(), known, strict=True)
        }


def _algorithm(name: str | type[Algorithm], settings: dict[str, Any]) -> Algorithm:
    cls = algorithm_named(name, "algorithm") if isinstance(name, str) else name
    return config.build(cls, settings, name if isinstance(name, str) else cls.__name__)


def _name_of(algorithm: Algorithm) -> str:
    """How experiment files call it: one that this package does not hold, by its module."""
    cls = type(algorithm)
    known = {found: name for name, found in ALGORITHMS.items()}
    return (
        known[cls]
        if cls in known and cls.__module__.startswith("perinvfl.")
        else f"{cls.__module__}:{cls.__qualname__}"
    )


def _model(given: Given, federation: Federation, training: Training) -> tuple[ModelSettings, ModelSettings | Model]:
    """As it is recorded, and as it is used."""
    if given is None or isinstance(given, ModelSettings):
        settings = given or ModelSettings()
        return settings, settings
    if isinstance(given, str):
        given = {"kind": "module", "build": given}
    if isinstance(given, dict):
        settings = config.build(ModelSettings, _plain(given), "model")
        return settings, settings
    name = f"{getattr(given, '__module__', '')}:{getattr(given, '__qualname__', type(given).__name__)}"
    made = module(given, federation.shape, federation.outputs, training.precision)
    return ModelSettings(kind="module", build=name), made


def _table(asked: dict[str, Any]) -> dict[str, Any]:
    return {**{key: asked[key] for key in PARTS if key in asked}, "seeds": [asked["seed"]],
            "algorithm": [asked["algorithm"]]}  # fmt: skip


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """A single text where a list of texts is meant is a mistake that Python would hide."""
    for key in ("test_contexts", "ignore", "features", "classes", "exclude_clients", "hidden"):
        if isinstance(settings.get(key), str | int):
            settings = {**settings, key: (settings[key],)}
    return settings
