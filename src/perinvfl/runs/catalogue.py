"""What an experiment file may name: algorithms, benchmarks, and every setting with its default, bounds and meaning.

The declarations stand on dataclasses beside the code that uses them, and importing those imports torch. What is only
shown (`perinvfl list`, the report) is read from catalogue.json instead, which `scripts/make_catalogue.py` writes from
the declarations; a test fails while the two differ.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

FILE = "catalogue.json"


@dataclass(frozen=True)
class Setting:
    name: str
    symbol: str
    default: Any  # None: it must be given
    allowed: str  # choices or bounds, in words
    search: str  # the range of a random search, in words
    meaning: str

    @property
    def default_text(self) -> str:
        """The default as it would stand in a TOML file; empty where there is none."""
        return "" if self.default is None else _toml(self.default)


@dataclass(frozen=True)
class Entry:
    """An algorithm, a benchmark or a section of an experiment file, and its settings."""

    title: str
    paper: str  # of an algorithm, else empty
    purpose: str  # of an algorithm, else empty
    about: str  # likewise: what it does, in a sentence or two
    settings: tuple[Setting, ...]

    def setting(self, name: str) -> Setting:
        return next(setting for setting in self.settings if setting.name == name)


@dataclass(frozen=True)
class Catalogue:
    algorithms: dict[str, Entry]
    benchmarks: dict[str, Entry]
    sections: dict[str, Entry]


@cache
def read_catalogue() -> Catalogue:
    """
    >>> read_catalogue().algorithms["fedavg"].paper
    'McMahan et al. 2017'
    """
    text = files("perinvfl.runs").joinpath(FILE).read_text(encoding="utf-8")
    parts = {part: {name: _entry(entry) for name, entry in kept.items()} for part, kept in json.loads(text).items()}
    return Catalogue(**parts)


def _entry(kept: dict[str, Any]) -> Entry:
    return Entry(**{**kept, "settings": tuple(Setting(**setting) for setting in kept["settings"])})


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
