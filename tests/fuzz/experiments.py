"""Experiment files: mutated by structure and by bytes, read, and followed up to the first round."""

import copy
import datetime
import json
import math
import random
import re
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from perinvfl.engine.simulation import Simulation
from perinvfl.flower.settings import check_deployment, read_settings
from perinvfl.preparation.program import check_preparation
from perinvfl.runs.catalogue import read_catalogue
from perinvfl.runs.experiment import parse_override, read_experiment, read_table
from perinvfl.runs.presets import preset_file, preset_names
from perinvfl.runs.search import search
from tests.fuzz import odd
from tests.fuzz.core import Fuzzer

SMALL: dict[str, dict[str, Any]] = {
    "rc_mnist": {"train_per_client": 40, "test_per_client": 10, "holdout": 4},
    "rc_fmnist": {"train_per_client": 40, "test_per_client": 10, "holdout": 4},
    "mnist": {"images": 300, "test_images": 30, "clients": 3},
    "fmnist": {"images": 300, "test_images": 30, "clients": 3},
    "waterbird": {"cub": "", "albums": "none"},
    "drawn_birds": {"train_per_client": 8, "test_per_client": 4, "size": 8, "birds": 12, "backgrounds": 60},
    "structural": {"samples": 20, "clients": 3},
    "planted": {"rows": 40, "test_rows": 20},
    "random": {},
    "heart_disease": {},
    "file": {"path": "table.csv", "client": "site", "context": "year", "label": "ill"},
    "sites": {"clients": 2},
}
LARGEST = 3e6  # numbers in the data or the model of an experiment that is built, and not only read


def corpus() -> list[dict[str, Any]]:
    """One small file for each benchmark and algorithm, and the presets."""
    catalogue, made = read_catalogue(), []
    names = list(catalogue.algorithms)
    for number, benchmark in enumerate(catalogue.benchmarks):
        for step in range(4):
            name = names[(number * 4 + step) % len(names)]
            settings = {s.name: s.default for s in catalogue.algorithms[name].settings}
            table: dict[str, Any] = {
                "name": "fuzz", "seeds": [0], "data": {"benchmark": benchmark, **SMALL.get(benchmark, {})},
                "model": {"kind": "mlp", "hidden": [4]}, "training": {"rounds": 2, "batch_size": 0},
                "algorithm": [{"name": name, **{k: v for k, v in settings.items() if isinstance(v, int | float)}}],
            }  # fmt: skip
            if step == 1:
                table["contexts"] = {s.name: s.default for s in catalogue.sections["contexts"].settings if s.default}
            if step == 2:
                table["federation"] = {s.name: s.default for s in catalogue.sections["federation"].settings}
            made.append(table)
    presets = [
        tomllib.loads(preset_file(name).read_text(encoding="utf-8"))
        for name in preset_names()
        if not name.endswith("waterbird")
    ][::3]
    for preset in presets:
        preset["model"] = {"kind": "mlp", "hidden": [4]}
        preset["data"] |= SMALL[preset["data"]["benchmark"]]
    return made + presets


class Experiments:
    def __init__(self) -> None:
        self.tables = corpus()
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        rows = [f"{site},{year},{i % 2},{i % 5},{'abc'[i % 3]}" for i, (site, year) in enumerate(
            (site, year) for site in ("a", "b") for year in (2020, 2021) for _ in range(8))]  # fmt: skip
        (self.folder / "table.csv").write_text("\n".join(["site,year,ill,age,kind", *rows]))
        sections = read_catalogue().sections.values()
        self.settings = [s.name for entry in (*sections, *read_catalogue().algorithms.values()) for s in entry.settings]

    def make(self, rng: random.Random) -> tuple[bytes, list[str]]:
        table = rng.choice(self.tables)
        kind = rng.random()
        if kind < 0.65:
            table = odd.mutate(table, rng)
        elif kind < 0.75:  # a known setting with an odd value, wherever it fits
            table = copy.deepcopy(table)
            part = rng.choice([table["data"], table["model"], table["training"], table["algorithm"][0]])
            part[rng.choice(self.settings)] = odd.odd_value(rng)
        content = toml(table)
        if kind > 0.8:
            content = odd.mutate_bytes(content, rng)
        overrides = []
        if rng.random() < 0.15:
            where = rng.choice(["data", "model", "training", "algorithm", "algorithm.fedavg", "", "seeds", "a.b.c.d"])
            key = rng.choice(self.settings)
            value = rng.choice((*odd.TEXTS, "1", "[1]", "{a=1}", "[[", "2020-01-01"))
            overrides = [f"{where}.{key}={value}"]
        return content, overrides

    def feed(self, given: tuple[bytes, list[str]]) -> None:
        content, overrides = given
        path = self.folder / "experiment.toml"
        path.write_bytes(content)
        for override in overrides:
            parse_override(override)
        experiment = read_experiment(path, overrides)
        settings = read_settings(read_table(path, overrides))
        for trial in search(experiment, 2, 0).trials[:2]:
            assert trial.id
        for trial in experiment.trials[:2]:
            assert trial.id and trial.folder and trial.program()
            json.dumps(trial.asked())
            check_deployment(settings, trial, trial.data.clients)
            federation = trial.federation()
            check_preparation(trial.contexts, federation, trial.model)
            Simulation([trial.algorithm], [federation], [trial.seed], trial.training, trial.model)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def toml(table: dict[str, Any]) -> bytes:
    """A table as text; tables inside it as inline tables, for any nesting."""
    lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items()]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, int):
        return hex(value) if value > 10**40 else str(value) if abs(value) < 10**4000 else "-1"
    if isinstance(value, float):
        return (
            "nan"
            if math.isnan(value)
            else "inf"
            if value == math.inf
            else "-inf"
            if value == -math.inf
            else repr(value)
        )
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if value is None:
        return '""'
    return _text(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: Any) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else _text(str(key))


def fuzzer() -> Fuzzer:
    made = Experiments()
    return Fuzzer("experiments", made.make, made.feed)
