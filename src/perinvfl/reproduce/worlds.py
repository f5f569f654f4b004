"""The worlds of a folder and the methods measured in them: which runs that makes.

`methods.toml` lists the methods, each with the settings that are tried; every other file of the folder is a world: the
data, and how long to train. All settings are run in the chosen worlds on one seed; the best one of each method then in
the reported worlds on fresh seeds.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perinvfl.algorithms import ALGORITHMS
from perinvfl.core.config import suggest
from perinvfl.errors import UserError
from perinvfl.results.worlds import BOUND, half_of
from perinvfl.runs.experiment import PARTS, build_experiment, read_table
from perinvfl.runs.trial import Trial

METHODS = "methods.toml"
Table = dict[str, Any]


@dataclass(frozen=True)
class World:
    name: str
    table: Table  # data, model and training, as in an experiment file

    @property
    def benchmark(self) -> str:
        return str(self.table.get("data", {}).get("benchmark", ""))

    @property
    def effort(self) -> int:
        """About how much work a run here is, to begin with the largest: tables are small, convolutions are not."""
        run = build_experiment({**self.table, "algorithm": {"name": "fedavg"}}, self.name).trials[0]
        samples = getattr(run.data, "train_per_client", 0)
        each_round = min(samples, run.training.batch_size or samples) * len(getattr(run.data, "p_train", ()))
        convolutions = run.model.width**2 if run.model.kind == "resnet18" else 1
        return each_round * run.training.rounds * convolutions

    def without_shortcut(self) -> "World | None":
        """The same world in which only what holds is left to learn; None where the best error is known anyway."""
        data = self.table["data"]
        if self.benchmark == "structural":
            return None
        if self.benchmark in ("rc_mnist", "rc_fmnist"):
            changed: Table = {"grayscale": True}
        elif self.benchmark == "planted":
            changed = {"without_shortcut": True}
        elif self.benchmark in ("drawn_birds", "waterbird"):
            changed = {"p_train": [0.5] * len(data["p_train"])}  # a background that tells nothing
        else:
            raise UserError(f'{self.name}: data.benchmark = "{self.benchmark}" has no version without its shortcut.')
        return World(self.name, {**self.table, "data": {**data, **changed}})


@dataclass(frozen=True)
class Method:
    label: str
    entries: tuple[Table, ...]  # for each setting that is tried, what stands under [[algorithm]] in an experiment file

    def trials(self, world: World, settings: Iterable[int], seeds: Sequence[int]) -> list[Trial]:
        """Its runs in a world, an error where it cannot run there. The bound runs in the world without its shortcut."""
        place = world.without_shortcut() if self.label == BOUND else world
        if place is None:
            return []
        trials = []
        for number in settings:
            entry = {**self.entries[number], "label": f"{self.label} #{number}"}
            made = build_experiment({**place.table, "seeds": list(seeds), "algorithm": entry}, world.name)
            trials += [dataclasses.replace(trial, method=self.label, setting=number) for trial in made.trials]
        return trials


@dataclass(frozen=True)
class Plan:
    worlds: tuple[World, ...]
    methods: tuple[Method, ...]  # the bound first
    seed: int  # for choosing
    seeds: tuple[int, ...]  # for reporting

    def only(self, worlds: Sequence[str], methods: Sequence[str]) -> "Plan":
        """These worlds and methods alone; all of them where none are named."""
        for name, given, known in (
            ("--only", worlds, [world.name for world in self.worlds]),
            ("--method", methods, [method.label for method in self.methods]),
        ):
            for word in given:
                if word not in known:
                    raise UserError(f'{name} "{word}" is not known{suggest(word, known)}')
        return dataclasses.replace(
            self,
            worlds=tuple(world for world in self.worlds if not worlds or world.name in worlds),
            methods=tuple(method for method in self.methods if not methods or method.label in methods),
        )

    def half(self, half: str) -> list[World]:
        return [world for world in self.worlds if half_of(world.name) == half]


def read_plan(folder: Path) -> Plan:
    if not (folder / METHODS).exists():
        raise UserError(f"{folder} has no {METHODS}; give a folder of worlds, such as experiments/worlds.")
    worlds = [_world(path) for path in sorted(folder.glob("*.toml")) if path.name != METHODS]
    if not worlds:
        raise UserError(f"{folder} has no file of a world, such as images-01-small.toml.")
    table = read_table(folder / METHODS)
    known = ["seed", "seeds", "bound", "method"]
    for key in table:
        if key not in known:
            raise UserError(f"{METHODS}: {key} is not a setting{suggest(key, known)}")
    seed, seeds = table.get("seed", 0), table.get("seeds", [101, 102, 103, 104, 105])
    if seed in seeds:
        raise UserError(f"{METHODS}: seeds = {seeds}: must be fresh, and {seed} is the one for choosing.")
    entries = [{**table.get("bound", {"name": "ditto"}), "label": BOUND}, *table.get("method", [])]
    methods = [_method(entry, number) for number, entry in enumerate(entries)]
    labels = [method.label for method in methods]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UserError(f'{METHODS}: two methods are called "{twice}"; give one of them another label.')
    return Plan(tuple(worlds), tuple(methods), seed, tuple(seeds))


def _world(path: Path) -> World:
    half_of(path.stem)  # whether it is called as a world is
    table = read_table(path)
    known = ["data", "model", "training"]
    for key in table:
        if key not in known:
            raise UserError(f"{path}: {key} is no part of a world{suggest(key, known)}")
    world = World(path.stem, table)
    build_experiment({**table, "algorithm": {"name": "fedavg"}}, world.name)  # its settings are right
    world.without_shortcut()  # and it has a bound
    return world


def _method(entry: Table, number: int) -> Method:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise UserError(f"{METHODS}: method[{number}] must be a table with a name.")
    plain = {key: value for key, value in entry.items() if key not in ("settings", "label")}
    known = ALGORITHMS.get(entry["name"])
    label = entry.get("label") or (known.title if known else entry["name"])
    settings = entry.get("settings", [{}])
    if not isinstance(settings, list) or not settings or not all(isinstance(setting, dict) for setting in settings):
        raise UserError(f"{METHODS}: settings of {label} must be a list of tables, such as [{{ l2 = 0.1 }}].")
    return Method(label, tuple(_merged(plain, setting) for setting in settings))


def _merged(entry: Table, setting: Table) -> Table:
    """An entry with one of its settings; of a part, such as contexts, what the setting does not name stays."""
    parts = {part: {**entry.get(part, {}), **setting[part]} for part in PARTS if part in setting}
    return {**entry, **setting, **parts}


# A small version: whether everything runs, in minutes on a laptop.
REDUCED: dict[str, Table] = {
    "images": {"train_per_client": 60, "holdout": 12, "test_per_client": 40},
    "tables": {"rows": 60, "test_rows": 40},
    "structural": {"samples": 20, "holdout": 4},
    "birds": {"train_per_client": 20, "holdout": 6, "test_per_client": 8, "size": 16, "crop": 0},
}


def reduced(plan: Plan) -> Plan:
    """Every world with little data, six rounds and a small model; the first two settings and two seeds."""

    def smaller(world: World) -> World:
        pictures = world.table.get("model", {}).get("kind") == "resnet18"
        model = {**world.table.get("model", {}), **({"width": 2} if pictures else {"hidden": [8]})}
        data = {**world.table["data"], **REDUCED.get(world.name.partition("-")[0], {})}
        training = {"rounds": 6, "evaluate_every": 6, "batch_size": 4 if pictures else 0}
        return World(world.name, {"data": data, "model": model, "training": training})

    def fewer(method: Method) -> Method:
        short = {"contexts": {"reference_rounds": 2}}
        entries = (_merged(entry, short) if "contexts" in entry else entry for entry in method.entries[:2])
        return Method(method.label, tuple(entries))

    return Plan(tuple(map(smaller, plan.worlds)), tuple(map(fewer, plan.methods)), plan.seed, plan.seeds[:2])
