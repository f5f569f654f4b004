"""From plain mappings (a TOML file) to frozen dataclasses, with every mistake answered by one sentence.

Written by hand on the standard library, because what trains must run where nothing can be installed.
"""

import dataclasses
import difflib
import types
import typing
from typing import Any, Literal, TypeVar, Union

from perinvfl.core.hyper import LARGEST, check_bounds
from perinvfl.core.naming import in_short, shortened
from perinvfl.errors import UserError

LONGEST_TEXT = 4000  # characters of a setting; no path is longer

T = TypeVar("T")
MOST_LISTED = 3000  # characters of a list of what is known


class NumbersByName(dict[str, tuple[float, ...]]):
    """A table such as {chol = 0, bp = [0, 999]}; never changed, so that settings that hold it can be compared."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def build(cls: type[T], mapping: Any, where: str) -> T:
    """Make a cls from a mapping: unknown keys refused, types and bounds checked, then `cls.check` if it has one."""
    if not isinstance(mapping, dict):
        raise UserError(f"{where} must be a table of settings, not {in_short(mapping)}.")
    hints = typing.get_type_hints(cls)
    known = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    for key in mapping:
        if key not in known:
            raise UserError(f"{where}.{shortened(key)} is not a setting{suggest(key, known)}")
    values = {key: convert(hints[key], value, f"{where}.{key}") for key, value in mapping.items()}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if missing and field.init and field.name not in values:
            raise UserError(f"{where}.{field.name} is missing.")
    made = cls(**values)
    check_bounds(made, where)
    if hasattr(made, "check"):
        made.check(where)
    return made


def replaced(settings: T, key: str, value: Any, where: str) -> T:
    """The settings with one of them changed, its type and bounds checked."""
    hint = typing.get_type_hints(type(settings))[key]
    made = dataclasses.replace(settings, **{key: convert(hint, value, f"{where}.{key}")})  # type: ignore[type-var]
    check_bounds(made, where)
    return made


def suggest(key: str, known: list[str]) -> str:
    """The end of a sentence about a name that is not known.

    >>> suggest("colour", ["color", "size"]), suggest("b", ["x" * 1000, "y"])[:40]
    ('; did you mean color?', '; known are xxxxxxxxxxxxxxxxxxxxxxxxxxxx')
    >>> len(suggest("b", ["x" * 1000] * 1000)) < 2000
    True
    """
    close = difflib.get_close_matches(shortened(str(key)), known, n=1)
    if close:
        return f"; did you mean {shortened(close[0])}?"
    return f"; known are {shortened(', '.join(map(shortened, known)), MOST_LISTED)}."


def convert(hint: Any, value: Any, where: str) -> Any:
    """A plain value as a type hint asks for it."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin is Literal:
        options = typing.get_args(hint)
        if value not in options:
            raise UserError(f"{where} = {in_short(value)}: must be one of {', '.join(map(in_short, options))}.")
        return value
    if origin in (Union, types.UnionType):
        options = typing.get_args(hint)
        for option in options:
            try:
                return convert(option, value, where)
            except UserError:
                continue
        raise UserError(f"{where} = {in_short(value)}: must be {' or '.join(map(_name, options))}.")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} = {in_short(value)}: must be {_name(hint)}.")
        item = typing.get_args(hint)[0]
        return tuple(convert(item, part, f"{where}[{index}]") for index, part in enumerate(value))
    if hint is NumbersByName:
        if not isinstance(value, dict):
            raise UserError(f"{where} = {in_short(value)}: must be a table of numbers by name, such as {{chol = 0}}.")
        lists = {name: part if isinstance(part, list | tuple) else [part] for name, part in value.items()}
        return NumbersByName(
            {name: convert(tuple[float, ...], lists[name], f"{where}.{shortened(name)}") for name in lists}
        )
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, where)
    right = (
        (hint is float and isinstance(value, int | float) and not isinstance(value, bool))
        or (hint is int and isinstance(value, int) and not isinstance(value, bool))
        or (hint in (bool, str) and isinstance(value, hint))
        or (hint is type(None) and value is None)
    )
    if not right:
        raise UserError(f"{where} = {in_short(value)}: must be {_name(hint)}.")
    if hint is str and len(value) > LONGEST_TEXT:
        raise UserError(f"{where} = {in_short(value)}: must be a text of at most {LONGEST_TEXT} characters.")
    if hint is float and isinstance(value, int) and abs(value) > LARGEST:
        raise UserError(f"{where} = {in_short(value)}: must be a number between {-LARGEST:g} and {LARGEST:g}.")
    return float(value) if hint is float else value


def _name(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return f"a list, each entry {_name(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(in_short, typing.get_args(hint)))
    if typing.get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(_name, typing.get_args(hint)))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "absent"}[hint]
