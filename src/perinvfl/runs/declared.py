"""Entries of the catalogue from the declarations beside the code: what scripts/make_catalogue.py writes down, and how
`perinvfl list` shows an algorithm of one's own. Imports torch."""

import dataclasses
import inspect
import typing
from collections.abc import Iterable
from typing import Any, Literal

from perinvfl.algorithms import Algorithm, settings_of
from perinvfl.core.naming import written_out
from perinvfl.runs.catalogue import Entry, Setting

BOUNDS = {"least": "≥", "above": ">", "most": "≤"}


def entry_of(algorithm: type[Algorithm]) -> Entry:
    settings = described(settings_of(algorithm))
    paper = getattr(algorithm, "paper", "")  # one of the user's own may have none
    return Entry(algorithm.title, paper, algorithm.purpose, about(algorithm), settings)


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
        f"{sign} {written_out(field.metadata[key])}"
        for key, sign in BOUNDS.items()
        if field.metadata.get(key) is not None
    )
