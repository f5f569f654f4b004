"""What a person should look at before a table is trained on: how columns were read, and names that may be typing
mistakes. A class may be one if it stands in hardly any row, a client if it has hardly any row beside a namesake."""

from collections.abc import Mapping

import torch
from torch import Tensor

from perinvfl.core.naming import counted
from perinvfl.core.toml_text import toml_value
from perinvfl.data.own.files import FileSettings, Source, read_rows
from perinvfl.data.own.rows import MOST_CLASSES, Rows

FEW_ROWS = 5  # a name in fewer rows may be a mistake,
RARE = 100  # if this is one class in so many rows or fewer,
OUTNUMBERED = 10  # or if another of nearly the same name has so many times as many rows
MOST_COMPARED = 1000  # clients
MOST_NAMED = 5  # of each kind
SIGNS = "+-<>="  # that make another name


def notes_on(settings: FileSettings) -> list[str]:
    """Of a file that can be used."""
    rows = read_rows(settings)
    return [*rows.notes, *suspicions(rows, settings)]


def suspicions(rows: Rows, settings: Source) -> list[str]:
    """A sentence for each name to look at. Classes that the settings name are meant."""
    found = [] if settings.classes or not rows.classes else _rare_classes(rows, settings.label)
    return found + _small_namesakes(rows, settings.client)


def _rare_classes(rows: Rows, label: str) -> list[str]:
    total, counts = len(rows.y), _counts(rows.y.long(), rows.classes)
    few = [name for name, count in counts.items() if count < FEW_ROWS]
    rare = [name for name in few if RARE * counts[name] <= total or _namesake(name, counts)]
    if len(rare) > MOST_NAMED:
        return [f"{label}: {len(rare)} of {len(counts)} classes stand in fewer than {FEW_ROWS} rows each"]
    meant = f"classes = {toml_value(list(rows.classes))}" if len(counts) <= MOST_CLASSES else "classes = [...]"
    return [
        f'{label}: "{name}" stands in {counts[name]} of {total} rows; if that is a typing mistake, correct the file; '
        f"if it is a class, name all classes ({meant})"
        for name in rare
    ]


def _small_namesakes(rows: Rows, client: str) -> list[str]:
    counts = _counts(rows.client, rows.clients)
    few = [name for name, count in counts.items() if count < FEW_ROWS]
    pairs = [(name, other) for name in few if (other := _namesake(name, counts))]
    return [
        f'{client}: "{name}" has {counted(counts[name], "row")} and "{other}" {counts[other]}; if they are the same '
        "client, write its name in one way"
        for name, other in pairs[:MOST_NAMED]
    ]


def _counts(numbers: Tensor, names: tuple[str, ...]) -> dict[str, int]:
    return dict(zip(names, torch.bincount(numbers, minlength=len(names)).tolist(), strict=True))


def _namesake(name: str, counts: Mapping[str, int]) -> str:
    """One of nearly the same name that has many more rows; empty if there is none."""
    if len(counts) > MOST_COMPARED:
        return ""
    many = (other for other, count in counts.items() if count >= OUTNUMBERED * max(counts[name], 1))
    return next((other for other in many if nearly_the_same(name, other)), "")


def nearly_the_same(name: str, other: str) -> bool:
    """Of at least three letters, which differ in one at most or in two that changed places; digits must not differ.

    >>> nearly_the_same("St Marien", "St. Marien"), nearly_the_same("yse", "yes"), nearly_the_same("s1", "s2")
    (True, True, False)
    """
    one, two = ("".join(filter(str.isalnum, text.casefold())) for text in (name, other))
    if not one or not two or [sign for sign in name if sign in SIGNS] != [sign for sign in other if sign in SIGNS]:
        return False
    if [letter for letter in one if letter.isdigit()] != [letter for letter in two if letter.isdigit()]:
        return False
    short = min(len(one), len(two)) < 3
    while one and two and one[0] == two[0]:
        one, two = one[1:], two[1:]
    while one and two and one[-1] == two[-1]:
        one, two = one[:-1], two[:-1]
    same = not one and not two
    return same or (not short and ((len(one) <= 1 and len(two) <= 1) or (len(one) == 2 and one == two[::-1])))
