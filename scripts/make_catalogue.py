"""Write src/perinvfl/runs/catalogue.json from the settings that algorithms, benchmarks and the rest declare.

python scripts/make_catalogue.py            write it
python scripts/make_catalogue.py --check    say whether it is up to date
"""

import dataclasses
import inspect
import json
import sys
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from perinvfl.algorithms import ALGORITHMS, Algorithm, settings_of
from perinvfl.data.registry import BENCHMARKS
from perinvfl.flower.settings import DeploymentSettings
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.preparation.settings import ContextSettings
from perinvfl.runs.catalogue import FILE, Catalogue, Entry, Setting

CATALOGUE = Path(__file__).parents[1] / "src/perinvfl/runs" / FILE
SECTIONS = {"contexts": ContextSettings, "model": ModelSettings, "training": Training, "federation": DeploymentSettings}
BOUNDS = {"least": "≥", "above": ">", "most": "≤"}


def main(arguments: list[str]) -> int:
    text = as_text(catalogue())
    if arguments == ["--check"]:
        if CATALOGUE.exists() and CATALOGUE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{CATALOGUE} is out of date; `python scripts/make_catalogue.py` renews it.")
        return 1
    CATALOGUE.write_text(text, encoding="utf-8")
    return 0


def catalogue() -> Catalogue:
    algorithms = {
        name: Entry(
            algorithm.title, algorithm.paper, algorithm.purpose, about(algorithm), described(settings_of(algorithm))
        )
        for name, algorithm in ALGORITHMS.items()
    }
    benchmarks = {
        name: Entry(benchmark.doc, "", "", "", described(dataclasses.fields(benchmark.settings)))
        for name, benchmark in BENCHMARKS.items()
    }
    sections = {
        name: Entry(f"[{name}]", "", "", "", described(dataclasses.fields(cls))) for name, cls in SECTIONS.items()
    }
    return Catalogue(algorithms, benchmarks, sections)


def about(algorithm: type[Algorithm]) -> str:
    """The first paragraph of its docstring."""
    return " ".join((inspect.getdoc(algorithm) or "").partition("\n\n")[0].split())


def described(fields: Iterable["dataclasses.Field[Any]"]) -> tuple[Setting, ...]:
    return tuple(
        Setting(
            name=field.name,
            symbol=field.metadata.get("symbol", ""),
            default=None if field.default is dataclasses.MISSING else field.default,
            allowed=allowed(field),
            search=str(field.metadata.get("search") or ""),
            meaning=field.metadata.get("doc", ""),
        )
        for field in fields
    )


def allowed(field: "dataclasses.Field[Any]") -> str:
    """The choices or bounds a setting was declared with."""
    if typing.get_origin(field.type) is Literal:
        return ", ".join(typing.get_args(field.type))
    return ", ".join(
        f"{sign} {field.metadata[key]:g}" for key, sign in BOUNDS.items() if field.metadata.get(key) is not None
    )


def as_text(made: Catalogue) -> str:
    """One line per setting, so that a change reads well in a diff."""
    parts = []
    for part in dataclasses.fields(made):
        entries = getattr(made, part.name).items()
        parts.append(f'"{part.name}": {{\n' + ",\n".join(_entry(name, entry) for name, entry in entries) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _entry(name: str, entry: Entry) -> str:
    settings = ",\n".join(f"  {_json(dataclasses.asdict(setting))}" for setting in entry.settings)
    return (
        f' {_json(name)}: {{"title": {_json(entry.title)}, "paper": {_json(entry.paper)}, '
        f'"purpose": {_json(entry.purpose)}, "about": {_json(entry.about)}, "settings": [\n{settings}\n ]}}'
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
