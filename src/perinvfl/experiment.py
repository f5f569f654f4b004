"""A typed TOML file in, a list of trials out.

```toml
name = "first"
seeds = [0, 1]

[data]
benchmark = "rc_mnist"        # and any setting of that benchmark

[model]                       # see ModelSettings
[training]                    # see Training
rounds = 50

[[algorithm]]                 # one or more
name = "perinvfl"             # and any setting of that algorithm
beta = 0.5
data.grayscale = true         # data, model and training settings for this algorithm alone
```
"""

import dataclasses
import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from perinvfl import config
from perinvfl.algorithms import ALGORITHMS
from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.irm import Penalized
from perinvfl.data import BENCHMARKS, build_federation
from perinvfl.errors import UserError
from perinvfl.federation import Federation
from perinvfl.models import ModelSettings
from perinvfl.records import run_id
from perinvfl.simulate import Training


@dataclass(frozen=True)
class Trial:
    """One run: everything that decides its result, and nothing else."""

    benchmark: str
    data: Any  # the benchmark's settings
    model: ModelSettings
    training: Training
    algorithm_name: str
    label: str  # how tables call it
    algorithm: Algorithm
    seed: int
    held: frozenset[str] = frozenset()  # settings named in the file: a search leaves them alone

    def asked(self) -> dict[str, Any]:
        """The full configuration as plain values; its hash is the run's id."""
        settings = dataclasses.asdict(self.algorithm)
        for name in self.algorithm.unused:
            settings.pop(name)
        return {
            "data": {"benchmark": self.benchmark, **dataclasses.asdict(self.data)},
            "model": dataclasses.asdict(self.model),
            "training": dataclasses.asdict(self.training),
            "algorithm": {"name": self.algorithm_name, "label": self.label, **settings},
            "seed": self.seed,
        }

    @property
    def id(self) -> str:
        return run_id(self.asked())

    @property
    def folder(self) -> str:
        words = re.sub(r"[^a-z0-9]+", "-", self.label.lower()).strip("-")
        return f"{words}-seed{self.seed}-{self.id}"

    def federation(self) -> Federation:
        return _federation(self.benchmark, self.data, self.seed)


@lru_cache(maxsize=16)  # some 200 MB each at full size
def _federation(benchmark: str, settings: Any, seed: int) -> Federation:
    return build_federation(benchmark, settings, seed)


@dataclass(frozen=True)
class Experiment:
    name: str
    trials: tuple[Trial, ...]


def read_experiment(path: Path, overrides: list[str] | None = None) -> Experiment:
    """Read and check a file; overrides are `a.b=value`, the value written as in TOML."""
    return build_experiment(read_table(path, overrides), path.stem)


def read_table(path: Path, overrides: list[str] | None = None) -> dict[str, Any]:
    """What a file says once the overrides have replaced some of it, not checked yet."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give an experiment file, such as experiments/demo.toml.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a TOML file: {error}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    for override in overrides or []:
        _apply(table, override)
    return table


def build_experiment(table: dict[str, Any], default_name: str = "experiment") -> Experiment:
    # [federation] is for `perinvfl federation run`; one machine has nothing to take from it.
    known = ["name", "seeds", "data", "model", "training", "algorithm", "federation"]
    for key in table:
        if key not in known:
            raise UserError(f"{key} is not a setting{config.suggest(key, known)}")
    name = table.get("name", default_name)
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w .-]*", name):
        raise UserError(f'name = "{name}": must be a word that can name a folder.')
    seeds = table.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise UserError(f"seeds = {seeds}: must be a list of whole numbers, each at least 0.")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds = {seeds}: each seed may be named once; the same seed gives the same result.")
    entries = table.get("algorithm", [])
    entries = [entries] if isinstance(entries, dict) else entries
    if not isinstance(entries, list) or not entries:
        raise UserError("algorithm is missing: add at least one [[algorithm]] with a name.")
    trials = []
    for number, entry in enumerate(entries):
        where = f"algorithm[{number}]"
        if not isinstance(entry, dict):
            raise UserError(f"{where} must be a table with a name.")
        kind, label, algorithm, rest = _algorithm(entry, where)
        benchmark, data = _data(_merged(table, rest, "data"))
        model = config.build(ModelSettings, _merged(table, rest, "model"), "model")
        training = config.build(Training, _merged(table, rest, "training"), "training")
        held = frozenset(entry)
        trials += [Trial(benchmark, data, model, training, kind, label, algorithm, seed, held) for seed in seeds]
    _check_clients(trials)
    _check_labels(trials)
    _check_batches(trials)
    return Experiment(name, tuple(trials))


def _data(table: Any) -> tuple[str, Any]:
    if not isinstance(table, dict) or "benchmark" not in table:
        raise UserError(f"data.benchmark is missing; known are {', '.join(BENCHMARKS)}.")
    settings = dict(table)
    benchmark = settings.pop("benchmark")
    if not isinstance(benchmark, str) or benchmark not in BENCHMARKS:
        raise UserError(
            f'data.benchmark = "{benchmark}" is not known{config.suggest(str(benchmark), list(BENCHMARKS))}'
        )
    return benchmark, config.build(BENCHMARKS[benchmark].settings, settings, "data")


def _merged(table: dict[str, Any], own: dict[str, Any], part: str) -> Any:
    """The file's settings of one part, overlaid with those an algorithm asks for itself."""
    shared, extra = table.get(part, {}), own.get(part, {})
    return {**shared, **extra} if isinstance(shared, dict) and isinstance(extra, dict) else shared


def _algorithm(entry: dict[str, Any], where: str) -> tuple[str, str, Algorithm, dict[str, Any]]:
    """Its name, its label, the algorithm, and the data, model and training settings that are for it alone."""
    settings = dict(entry)
    rest: dict[str, Any] = {part: settings.pop(part) for part in ("data", "model", "training") if part in settings}
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise UserError(f'{where}.name = "{name}" is not known{config.suggest(str(name), list(ALGORITHMS))}')
    cls = ALGORITHMS[name]
    label = settings.pop("label", cls.title)
    if not isinstance(label, str) or not label:
        raise UserError(f"{where}.label = {label}: must be a text.")
    for key in settings:
        if key in cls.unused:
            raise UserError(f"{where}.{key} means nothing to {name}; leave it out.")
    return name, label, config.build(cls, settings, where), rest


def _check_clients(trials: list[Trial]) -> None:
    for trial in trials:
        clients = trial.data.clients
        for field in dataclasses.fields(trial.algorithm):
            value = getattr(trial.algorithm, field.name)
            if isinstance(value, tuple) and len(value) != clients:
                raise UserError(
                    f"{trial.algorithm_name}.{field.name} lists {len(value)} values for {clients} clients; "
                    "give one number for all, or one a client."
                )


def _check_batches(trials: list[Trial]) -> None:
    for trial in trials:
        if trial.training.batch_size == 1 and isinstance(trial.algorithm, Penalized):
            raise UserError(
                f"training.batch_size = 1: the penalty of {trial.label} compares two halves of a batch; at least 2."
            )


def _check_labels(trials: list[Trial]) -> None:
    seen: dict[str, str] = {}
    for trial in trials:
        if seen.setdefault(f"{trial.label} {trial.seed}", trial.id) != trial.id:
            raise UserError(f'Two algorithms are called "{trial.label}"; give one of them another label.')


def _apply(table: dict[str, Any], override: str) -> None:
    """Set one value: `training.rounds=5`, `algorithm.beta=0.1` (all that have it) or `algorithm.perinvfl.beta=0.1`."""
    path, separator, text = override.partition("=")
    if not separator:
        raise UserError(f"--set {override}: write it as key=value, such as training.rounds=5.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a text
    keys = path.strip().split(".")
    if keys[0] == "algorithm":
        _apply_to_algorithms(table.get("algorithm", []), keys[1:], value, override)
        return
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {override}: {key} is not a table of settings.")
    table[keys[-1]] = value


def _apply_to_algorithms(entries: Any, keys: list[str], value: Any, override: str) -> None:
    entries = [entries] if isinstance(entries, dict) else entries
    if len(keys) == 2:
        entries = [entry for entry in entries if keys[0] in (entry.get("name"), entry.get("label"))]
    elif len(keys) == 1:
        entries = [entry for entry in entries if keys[0] in _settable(entry.get("name"))]
    if len(keys) not in (1, 2) or not entries:
        raise UserError(f"--set {override}: no algorithm in the file takes it; write algorithm.NAME.KEY=value.")
    for entry in entries:
        entry[keys[-1]] = value


def _settable(name: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(ALGORITHMS[name])] if name in ALGORITHMS else []
