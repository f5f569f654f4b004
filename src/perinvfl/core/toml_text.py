"""TOML read and written. The standard library reads it; what it fails on otherwise is an error of the file too."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

LARGEST = 2**24  # bytes of a file


class TomlError(ValueError):
    """What is wrong with a text that is no TOML."""


def parse_toml(text: str) -> dict[str, Any]:
    """
    >>> parse_toml("a = 1")
    {'a': 1}
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TomlError("it is nested too deeply") from None
    except ValueError as error:  # also of whole numbers with more digits than Python reads, and of dates that are none
        raise TomlError(str(error).partition(";")[0]) from None


def read_toml(path: Path) -> dict[str, Any]:
    """A file, with or without a byte order mark; it may be a pipe, but not one without end."""
    with open(path, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise TomlError(f"it is larger than {LARGEST // 2**20} MiB")
    return parse_toml(content.decode("utf-8-sig"))


def toml_value(value: Any) -> str:
    """
    >>> toml_value(["a", 1, True, {"from": 0.1, "to": 10}])
    '["a", 1, true, {from = 0.1, to = 10}]'
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_key(key)} = {toml_value(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_text(table: dict[str, Any]) -> str:
    """A table whose own tables become [part], and lists of tables [[part]].

    >>> print(toml_text({"name": "x", "data": {"path": "a.csv"}, "algorithm": [{"name": "ditto"}]}), end="")
    name = "x"
    <BLANKLINE>
    [data]
    path = "a.csv"
    <BLANKLINE>
    [[algorithm]]
    name = "ditto"
    """
    parts = {key: value for key, value in table.items() if isinstance(value, dict)}
    several = {key: value for key, value in table.items() if _is_tables(value)}
    lines = [
        f"{toml_key(key)} = {toml_value(value)}" for key, value in table.items() if key not in {**parts, **several}
    ]
    for key, part in parts.items():
        lines += ["", f"[{toml_key(key)}]", *_settings(part)]
    for key, entries in several.items():
        for entry in entries:
            lines += ["", f"[[{toml_key(key)}]]", *_settings(entry)]
    return "\n".join(lines) + "\n"


def _settings(part: dict[str, Any]) -> list[str]:
    return [f"{toml_key(key)} = {toml_value(value)}" for key, value in part.items()]


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


def toml_key(key: str) -> str:
    """As it stands before the `=`."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
