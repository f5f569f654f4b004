"""Hyper-parameters as declared dataclass fields: default, symbol, meaning, bounds and search range together.

One declaration serves the typed TOML reader, `perinvfl list`, and random search.
"""

import dataclasses
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perinvfl.core.naming import in_short, written_out
from perinvfl.errors import UserError

# What no setting exceeds, unless it declares other bounds: further out, sums and sizes are no longer numbers.
LARGEST_WHOLE, LARGEST = 10**9, 1e18


@dataclass(frozen=True)
class LogUniform:
    low: float
    high: float

    def draw(self, rng: random.Random, settings: Any) -> float:
        return math.exp(rng.uniform(math.log(self.low), math.log(self.high)))

    def at(self, settings: Any) -> "LogUniform":
        """The range beside these settings."""
        return self

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}, log"


@dataclass(frozen=True)
class OneOf:
    options: tuple[Any, ...]

    def draw(self, rng: random.Random, settings: Any) -> Any:
        return rng.choice(self.options)

    def at(self, settings: Any) -> "OneOf":
        return self

    def __str__(self) -> str:
        return "one of " + ", ".join(str(option) for option in self.options)


@dataclass(frozen=True)
class By:
    """A range that depends on another setting; where that one has no entry, the default is kept."""

    field: str
    ranges: dict[str, LogUniform]

    def draw(self, rng: random.Random, settings: Any) -> Any:
        place = rng.random()  # drawn whatever the other setting, so that the other draws stay the same
        chosen = self.at(settings)
        return None if chosen is None else math.exp(math.log(chosen.low) + place * math.log(chosen.high / chosen.low))

    def at(self, settings: Any) -> LogUniform | None:
        return self.ranges.get(getattr(settings, self.field))

    def __str__(self) -> str:
        return "; ".join(f"{value}: {range_}" for value, range_ in self.ranges.items())


Range = LogUniform | OneOf | By


def hyper(
    default: Any,
    doc: str,
    *,
    symbol: str = "",
    search: Range | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    stacks: bool = False,
    later: bool = False,
) -> Any:
    """Declare one field.

    stacks: a whole number that may still differ between the trials of one batched sweep. later: a field younger than
    published records, which does not enter a run's name while it is at its default. most: where none is given, no
    number is accepted whose size exceeds LARGEST_WHOLE or, of a float, LARGEST.
    """
    bounds = {"least": least, "above": above, "most": most}
    return dataclasses.field(
        default=default,
        metadata={"doc": doc, "symbol": symbol, "search": search, "stacks": stacks, "later": later, **bounds},
    )


def check_bounds(settings: Any, where: str) -> None:
    """Raise for the first field outside the bounds it was declared with."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        least, above, most = (field.metadata.get(bound) for bound in ("least", "above", "most"))
        for number in _numbers(value):
            furthest = LARGEST_WHOLE if isinstance(number, int) else LARGEST
            if isinstance(number, float) and not math.isfinite(number):
                wrong = "must be a finite number"
            elif least is not None and number < least:
                wrong = f"must be at least {least}"
            elif above is not None and number <= above:
                wrong = f"must be greater than {above}"
            elif number > (furthest if most is None else most):
                wrong = f"must be at most {written_out(furthest if most is None else most)}"
            elif number < -furthest:
                wrong = f"must be at least {written_out(-furthest)}"
            else:
                continue
            raise UserError(f"{where}.{field.name} = {in_short(value)}: {wrong}.")


def asked(settings: Any) -> dict[str, Any]:
    """All settings as plain values, but for later ones at their default."""
    return {
        field.name: value
        for field, value in zip(dataclasses.fields(settings), dataclasses.astuple(settings), strict=True)
        if not (field.metadata.get("later") and value == field.default)
    }


def _numbers(value: Any) -> list[float]:
    if isinstance(value, bool):
        return []
    if isinstance(value, int | float):
        return [value]
    if isinstance(value, dict):
        return _numbers(tuple(value.values()))
    if isinstance(value, tuple):
        return [number for item in value for number in _numbers(item)]
    return []


def draw(settings: Any, rng: random.Random, held: frozenset[str], ranges: Mapping[str, Range] = {}) -> Any:
    """A random setting: every field with a search range, its own or one given, is drawn anew, except those held."""
    drawn = {name: range_.draw(rng, settings) for name, range_ in _searched(settings, ranges).items()}
    kept = {name: value for name, value in drawn.items() if name not in held and value is not None}
    return dataclasses.replace(settings, **kept)


def search_space(
    settings: Any, held: frozenset[str], ranges: Mapping[str, Range] = {}
) -> dict[str, LogUniform | OneOf]:
    """Where each field that a search may change lies: those that are not held and mean something."""
    fixed = held | set(getattr(settings, "unused", ()))  # what means nothing to an algorithm is not worth a trial
    found = {name: range_.at(settings) for name, range_ in _searched(settings, ranges).items() if name not in fixed}
    return {name: range_ for name, range_ in found.items() if range_ is not None}


def _searched(settings: Any, ranges: Mapping[str, Range]) -> dict[str, Range]:
    found = {field.name: ranges.get(field.name, field.metadata["search"]) for field in dataclasses.fields(settings)}
    return {name: range_ for name, range_ in found.items() if range_ is not None}
