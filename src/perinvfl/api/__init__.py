"""The library from Python: data in, rounds one by one, scores and predictions out.

>>> import perinvfl as pf
>>> federation = pf.load("random", clients=3, samples=40)
>>> session = pf.start(federation, pf.algorithm("fedavg", learning_rate=0.5), rounds=3, model={"hidden": [8]})
>>> for round in session:
...     print(round.number, sorted(round.risks))
1 ['Client 1', 'Client 2', 'Client 3']
2 ['Client 1', 'Client 2', 'Client 3']
3 ['Client 1', 'Client 2', 'Client 3']
>>> sorted(session.evaluate())
['0.1', '0.5']
"""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from perinvfl.algorithms import ALGORITHMS
from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.recommended import Recommended
from perinvfl.api.session import Round, Session
from perinvfl.core import config
from perinvfl.data.federation import Federation, Origin
from perinvfl.data.own.files import FileSettings, array_rows
from perinvfl.data.own.memory import ArraySettings, array_federation, frame_federation
from perinvfl.data.own.readers import TABLES_IN_MEMORY, frame_kind, why_no_frame
from perinvfl.data.own.rows import AskedTask
from perinvfl.data.registry import BENCHMARKS, build_federation
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import Model, ModelSettings, module
from perinvfl.preparation.program import check_preparation
from perinvfl.preparation.settings import read_contexts
from perinvfl.runs.asked import trial_of
from perinvfl.runs.experiment import algorithm_named
from perinvfl.runs.records import CHECKPOINT, EVENTS, read_run
from perinvfl.runs.trial import Trial

__all__ = ["ArraySettings", "Round", "Session", "algorithm", "from_arrays", "load", "resume", "start"]
Given = ModelSettings | dict[str, Any] | str | Callable[..., torch.nn.Module] | None


def load(source: Any, *, seed: int = 0, **settings: Any) -> Federation:
    """Load your own data or a benchmark: `pf.load("patients.csv", label="ill", client="hospital", context="year")`.

    source: the path of a file or folder, a data frame of pandas, polars or pyarrow, a Hugging Face data set, or the
    name of a benchmark. settings: as under `[data]` of an experiment file. The seed decides which rows are held out.
    """
    if frame_kind(source):
        return frame_federation(source, _plain(settings), seed)
    if not isinstance(source, str | os.PathLike):
        arrays = "; pf.from_arrays takes arrays" if hasattr(source, "__array__") or isinstance(source, list) else ""
        raise UserError(
            f"load takes the path of a file or folder, the name of a benchmark, {TABLES_IN_MEMORY}; "
            f"{why_no_frame(source)}{arrays}."
        )
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
    categories: Any = (),
    missing_values: dict[str, Any] | None = None,
    task: AskedTask = "auto",
    seed: int = 0,
    **division: Any,
) -> Federation:
    """Make a federation of arrays, tensors, lists or a table in memory.

    x: [n, ...]. y: the label of each row. client, context: who each row is from and what it was recorded in.
    A missing value of a table (NaN, None) is replaced by the training median, and text becomes a category.
    `categories` names columns whose numbers are codes; `missing_values` numbers that mean a gap, as {"chol": 0}.
    `division`: test_contexts, test_share, holdout, standardise, as in `[data]`.
    """
    declared = (categories,) if isinstance(categories, str) else tuple(categories)
    stand_ins = config.convert(config.NumbersByName, missing_values or {}, "missing_values")
    rows = array_rows(x, y, client, context, task, features, declared, stand_ins)
    return array_federation(rows, _plain(division), seed)


def algorithm(name: str | type[Algorithm], **settings: Any) -> Algorithm:
    """An algorithm with settings: by a name that `perinvfl list` shows, as "module:Class", or the class itself."""
    return _algorithm(name, settings)


def start(
    federation: Federation,
    algorithm: Algorithm | str = "recommended",
    *,
    rounds: int = 100,
    seed: int | None = None,
    model: Given = None,
    contexts: dict[str, Any] | None = None,
    **training: Any,
) -> Session:
    """Prepare a session; nothing is trained until a round is asked for.

    model: settings as under `[model]`, "module:function", or a function that makes a torch.nn.Module.
    contexts: settings as under `[contexts]`, to infer them. training: settings as under `[training]`.
    Without a seed, that of the federation is used.
    """
    if not isinstance(federation, Federation):
        raise UserError(f"start takes a federation, as load gives, and was given a {type(federation).__name__}.")
    chosen = _algorithm(algorithm, {}) if isinstance(algorithm, str) else algorithm
    if seed is None:
        seed = federation.origin.seed if federation.origin else 0
    settings = config.build(Training, _plain({**training, "rounds": rounds}), "training")
    origin = federation.origin or Origin(federation.name, ArraySettings(), seed)
    asked, made = _model(model, federation, settings)
    stage = read_contexts(contexts or {}, decides=isinstance(chosen, Recommended))
    check_preparation(stage, federation, made)
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
) -> Session:
    """Continue a saved session. Data that came from arrays, and a model that has no name, have to be given again."""
    folder = Path(folder)
    run = read_run(folder)
    if run is None or not (folder / CHECKPOINT).exists():
        raise UserError(f"{folder} holds no saved session; it must have {EVENTS} and {CHECKPOINT}.")
    asked = run.asked
    own_data = asked["data"]["benchmark"] not in BENCHMARKS
    if federation is None and own_data:
        raise UserError(f"{folder} was trained on data that no file holds: give the federation again.")
    if federation is not None and federation.origin is not None:
        was, now = asked["data"].get("checksum"), getattr(federation.origin.settings, "checksum", None)
        if was != now:
            raise UserError(f"{folder} was trained on other data (checksum {was}, here {now}).")
    # What is given takes the place of what is on record, which may no longer be found under its name.
    known: dict[str, Any] = {} if federation is None else {"data": {"benchmark": "random", "clients": run.clients}}
    known |= {} if model is None else {"model": {}}
    trial = trial_of({**asked, **known}, training={} if rounds is None else {"rounds": rounds})
    if federation is None:
        federation = build_federation(trial.benchmark, trial.data, run.start.get("data_seed", trial.seed))
    origin = federation.origin or Origin(federation.name, ArraySettings(), trial.seed)
    settings, made = _model(trial.model if model is None else model, federation, trial.training)
    trial = dataclasses.replace(trial, benchmark=origin.benchmark, data=origin.settings, model=settings)
    session = Session(federation, trial, made)
    session.restore(folder, run.events)
    return session


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


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """A single text where a list of texts is meant is a mistake that Python would hide."""
    if isinstance(settings.get("classes"), str):  # a number of classes is a setting of benchmarks
        settings = {**settings, "classes": (settings["classes"],)}
    for key in ("test_contexts", "ignore", "features", "categories", "exclude_clients", "hidden"):
        if isinstance(settings.get(key), str | int):
            settings = {**settings, key: (settings[key],)}
    return settings
