"""Write src/perinvfl/runs/catalogue.json from the settings that algorithms, benchmarks and the rest declare.

python scripts/make_catalogue.py            write it
python scripts/make_catalogue.py --check    say whether it is up to date
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from perinvfl.algorithms import ALGORITHMS
from perinvfl.data.registry import BENCHMARKS
from perinvfl.flower.settings import DeploymentSettings
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.preparation.settings import ContextSettings
from perinvfl.runs.catalogue import FILE, Catalogue, Entry
from perinvfl.runs.declared import described, entry_of

CATALOGUE = Path(__file__).parents[1] / "src/perinvfl/runs" / FILE
SECTIONS = {"contexts": ContextSettings, "model": ModelSettings, "training": Training, "federation": DeploymentSettings}


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
    algorithms = {name: entry_of(algorithm) for name, algorithm in ALGORITHMS.items()}
    benchmarks = {
        name: Entry(benchmark.doc, "", "", "", described(dataclasses.fields(benchmark.settings)))
        for name, benchmark in BENCHMARKS.items()
    }
    sections = {
        name: Entry(f"[{name}]", "", "", "", described(dataclasses.fields(cls))) for name, cls in SECTIONS.items()
    }
    return Catalogue(algorithms, benchmarks, sections)


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
