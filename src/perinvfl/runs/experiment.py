"""A typed TOML file in, a list of trials out.

```toml
name = "first"
seeds = [0, 1]

[data]
benchmark = "rc_mnist"        # and any setting of that benchmark

[contexts]                    # see ContextSettings
[model]                       # see ModelSettings
[training]                    # see Training
rounds = 50

[[algorithm]]                 # one or more
name = "perinvfl"             # and any setting of that algorithm; or your own, "my_module:MyAlgorithm"
beta = 0.5                    # for a search, also a range: {from = 0.1, to = 10} or {one_of = [0.5, 1]}
data.grayscale = true         # data, contexts, model and training settings for this algorithm alone
```
"""

import dataclasses
import math
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from perinvfl.algorithms import ALGORITHMS
from perinvfl.algorithms.base import Algorithm
from perinvfl.algorithms.recommended import Recommended
from perinvfl.core import config, hyper
from perinvfl.core.naming import in_short, shortened
from perinvfl.core.plugins import importing_from, load
from perinvfl.core.toml_text import TomlError, parse_toml, read_toml
from perinvfl.data.registry import BENCHMARKS
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.preparation.settings import KNOWN_BY_USERS, ContextSettings, read_contexts
from perinvfl.runs.facts import Effort
from perinvfl.runs.trial import Trial
from perinvfl.runs.trial_checks import check_trials

LARGEST_SEED = 2**63 - 1
PARTS = ("data", "contexts", "model", "training")


@dataclass(frozen=True)
class Experiment:
    name: str
    trials: tuple[Trial, ...]
    effort: Effort = dataclasses.field(default_factory=Effort)


def read_experiment(path: Path, overrides: list[str] | None = None) -> Experiment:
    """Read and check a file; overrides are `a.b=value`, the value written as in TOML."""
    table = read_table(path, overrides)
    with importing_from(path.parent):
        return build_experiment(table, path.stem)


def read_data_settings(path: Path, overrides: list[str] | None = None) -> tuple[str, Any]:
    """The benchmark that a file names and its settings, the data themselves not looked at."""
    return _data(read_table(path, overrides).get("data"))


def read_table(path: Path, overrides: list[str] | None = None) -> dict[str, Any]:
    """What a file says once the overrides have replaced some of it, not checked yet."""
    try:
        table = read_toml(path)
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist; give an experiment file. `perinvfl init DATA.csv` writes one, and "
            "`perinvfl list demo` shows one."
        ) from None
    except (TomlError, UnicodeDecodeError) as error:
        if path.suffix.lower() in (".csv", ".tsv", ".parquet"):
            init = f"perinvfl init {shlex.quote(str(path))}"
            raise UserError(f"{path} is a table; `{init}` writes an experiment file for it.") from None
        raise UserError(f"{path} is not a TOML file: {error}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    _find_beside(table, path.parent)
    for override in overrides or []:
        apply_override(table, override)
    return table


def _find_beside(table: dict[str, Any], folder: Path) -> None:
    """A data file named in an experiment file lies beside it."""
    entries = table.get("algorithm", [])
    for part in [table, *(entries if isinstance(entries, list) else [entries])]:
        data = part.get("data") if isinstance(part, dict) else None
        if isinstance(data, dict) and isinstance(data.get("path"), str) and data["path"]:
            data["path"] = str(folder.absolute() / Path(data["path"]).expanduser())


def build_experiment(table: dict[str, Any], default_name: str = "experiment") -> Experiment:
    # [federation] is for `perinvfl federation run`; one machine has nothing to take from it.
    known = ["name", "seeds", "search", *PARTS, "algorithm", "federation"]
    for key in table:
        if key not in known:
            raise UserError(f"{shortened(key)} is not a setting{config.suggest(key, known)}")
    name = table.get("name", default_name)
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w .-]*", name):
        raise UserError(f"name = {in_short(name)}: must be a word that can name a folder.")
    seeds = table.get("seeds", [0])
    if (
        not isinstance(seeds, list)
        or not seeds
        or not all(type(seed) is int and 0 <= seed <= LARGEST_SEED for seed in seeds)
    ):
        raise UserError(f"seeds = {in_short(seeds)}: must be a list of whole numbers from 0 to {LARGEST_SEED}.")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds = {in_short(seeds)}: each seed may be named once; the same seed gives the same result.")
    entries = table.get("algorithm", [])
    entries = [entries] if isinstance(entries, dict) else entries
    if entries and not isinstance(entries, list):
        raise UserError(
            f"algorithm = {in_short(entries)}: must be a table; write [[algorithm]], and name = ... below it."
        )
    if not entries:
        raise UserError("algorithm is missing: add at least one [[algorithm]] with a name.")
    trials = []
    for number, entry in enumerate(entries):
        where = f"algorithm[{number}]"
        if not isinstance(entry, dict):
            raise UserError(f"{where} must be a table with a name.")
        entry, ranges = _ranges(entry, where)
        kind, label, algorithm, rest = _algorithm(entry, where)
        ranges = tuple((key, _checked(range_, algorithm, key, where)) for key, range_ in ranges)
        benchmark, data = _data(_merged(table, rest, "data"))
        model = config.build(ModelSettings, _merged(table, rest, "model"), "model")
        if model.build:
            load(model.build, "model.build")
        training = config.build(Training, _merged(table, rest, "training"), "training")
        contexts = _contexts(table, rest, algorithm)
        held = frozenset(entry) - frozenset(dict(ranges))
        trials += [
            Trial(benchmark, fold, model, training, kind, label, algorithm, seed, held, contexts, ranges)
            for fold in (data.folds() if hasattr(data, "folds") else [data])
            for seed in seeds
        ]
    check_trials(trials)
    return Experiment(name, tuple(trials), config.build(Effort, table.get("search", {}), "search"))


def _data(table: Any) -> tuple[str, Any]:
    if not isinstance(table, dict) or "benchmark" not in table:
        raise UserError(f"data.benchmark is missing; known are {', '.join(BENCHMARKS)}.")
    settings = dict(table)
    benchmark = settings.pop("benchmark")
    if not isinstance(benchmark, str) or benchmark not in BENCHMARKS:
        named = in_short(benchmark)
        raise UserError(f"data.benchmark = {named} is not known{config.suggest(named, list(BENCHMARKS))}")
    return benchmark, config.build(BENCHMARKS[benchmark].settings, settings, "data")


def _merged(table: dict[str, Any], own: dict[str, Any], part: str) -> Any:
    """The file's settings of one part, overlaid with those an algorithm asks for itself."""
    shared, extra = table.get(part, {}), own.get(part, {})
    return {**shared, **extra} if isinstance(shared, dict) and isinstance(extra, dict) else shared


def _contexts(table: dict[str, Any], own: dict[str, Any], algorithm: Algorithm) -> ContextSettings:
    """What all share is for those that it means something to; what an algorithm asks for itself must."""
    if not isinstance(algorithm, Recommended):
        return read_contexts(_merged(table, own, "contexts"))
    shared = table.get("contexts", {})
    if isinstance(shared, dict):
        shared = {key: value for key, value in shared.items() if key in KNOWN_BY_USERS}
    return read_contexts(_merged({"contexts": shared}, own, "contexts"), decides=True)


def _ranges(entry: dict[str, Any], where: str) -> tuple[dict[str, Any], tuple[tuple[str, hyper.Range], ...]]:
    """The entry with the middle or the first of each search range in its place, and the ranges.

    A range is written `beta = {from = 0.1, to = 10}` or `beta = {one_of = [0, 1]}`.
    """
    found: dict[str, hyper.Range] = {}
    plain = dict(entry)
    for key, value in entry.items():
        if not isinstance(value, dict) or key in (*PARTS, "name", "label"):
            continue
        ends, options = (value.get("from"), value.get("to")), value.get("one_of")
        if set(value) == {"one_of"} and isinstance(options, list) and options:
            found[key], plain[key] = hyper.OneOf(tuple(options)), options[0]
        elif set(value) == {"from", "to"} and all(_is_number(end) and 0 < end <= sys.float_info.max for end in ends):
            low, high = sorted(map(float, ends))  # type: ignore[arg-type]
            found[key], plain[key] = hyper.LogUniform(low, high), math.sqrt(low * high)
        else:
            raise UserError(
                f"{where}.{shortened(key)}: a search range is {{from = 0.1, to = 10}} with two numbers above 0, "
                "or {one_of = [1, 2]}."
            )
    return plain, tuple(found.items())


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked(range_: hyper.Range, algorithm: Algorithm, key: str, where: str) -> hyper.Range:
    """The range, when every value in it could be written alone; its options as the settings they then would be."""
    if isinstance(range_, hyper.OneOf):
        settings = [config.replaced(algorithm, key, option, where) for option in range_.options]
        return hyper.OneOf(tuple(getattr(made, key) for made in settings))
    if isinstance(range_, hyper.LogUniform):
        for end in (range_.low, range_.high):
            config.replaced(algorithm, key, end, where)
    return range_


def _algorithm(entry: dict[str, Any], where: str) -> tuple[str, str, Algorithm, dict[str, Any]]:
    """Its name, its label, the algorithm, and the settings of other parts that are for it alone."""
    settings = dict(entry)
    rest: dict[str, Any] = {part: settings.pop(part) for part in PARTS if part in settings}
    name = settings.pop("name", None)
    cls = algorithm_named(name, f"{where}.name")
    label = settings.pop("label", cls.title)
    if not isinstance(label, str) or not label:
        raise UserError(f"{where}.label = {in_short(label)}: must be a text.")
    for key in settings:
        if key in cls.unused:
            raise UserError(f"{where}.{key} means nothing to {name}; leave it out.")
    return name, label, config.build(cls, settings, where), rest


def algorithm_named(name: Any, where: str) -> type[Algorithm]:
    """A registered algorithm, or a user's own as `module:Class`."""
    if isinstance(name, str) and name in ALGORITHMS:
        return ALGORITHMS[name]
    if not isinstance(name, str) or ":" not in name:
        raise UserError(f"{where} = {in_short(name)} is not known{config.suggest(in_short(name), list(ALGORITHMS))}")
    found = load(name, where)
    if not (isinstance(found, type) and issubclass(found, Algorithm) and dataclasses.is_dataclass(found)):
        raise UserError(f'{where} = "{name}": must be a dataclass that extends perinvfl.algorithms.Algorithm.')
    if not hasattr(found, "title"):
        raise UserError(f'{where} = "{name}": must have a title, under which tables show it.')
    return found


def apply_override(table: dict[str, Any], override: str) -> None:
    """Set one value: `training.rounds=5`, `algorithm.beta=0.1` (all that have it) or `algorithm.perinvfl.beta=0.1`."""
    path, value = parse_override(override)
    keys = path.split(".")
    if keys[0] == "algorithm":
        _apply_to_algorithms(table.get("algorithm", []), keys[1:], value, override)
        return
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {shortened(override)}: {key} is not a table of settings.")
    table[keys[-1]] = value


def parse_override(override: str) -> tuple[str, Any]:
    """`key=value`, the value written as in TOML."""
    path, separator, text = override.partition("=")
    if not separator or not path.strip():
        raise UserError(f"--set {shortened(override)}: write it as key=value, such as training.rounds=5.")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except TomlError:
        value = text  # a bare word is a text
    return path.strip(), value


def _apply_to_algorithms(entries: Any, keys: list[str], value: Any, override: str) -> None:
    entries = [entries] if isinstance(entries, dict) else entries
    entries = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    names = [str(entry.get("label") or entry.get("name")) for entry in entries]
    if len(keys) == 2:
        entries = [entry for entry in entries if keys[0] in (entry.get("name"), entry.get("label"))]
    elif len(keys) == 1:
        entries = [entry for entry in entries if keys[0] in _settable(entry.get("name"))]
    if len(keys) not in (1, 2) or not entries:
        raise UserError(
            f"--set {shortened(override)}: no algorithm in the file takes it; write algorithm.NAME.KEY=value"
            + (f", where NAME is {shortened(' or '.join(names))}." if names else ".")
        )
    for entry in entries:
        entry[keys[-1]] = value


def _settable(name: Any) -> list[str]:
    try:
        return [field.name for field in dataclasses.fields(algorithm_named(name, "name"))]
    except UserError:
        return []  # the reader of the file will say what is wrong with it
