"""What clients may tell of their notes, as plain values for the record: one entry per client."""

from typing import Any

from perinvfl.core.image_grid import GRID
from perinvfl.models.symmetry import views_of
from perinvfl.preparation.alignment import views_noted
from perinvfl.preparation.border import BORDERS
from perinvfl.preparation.columns import MOST_DIRECTIONS, SOURCES
from perinvfl.preparation.inferred_contexts import wrong_shares
from perinvfl.preparation.phases import Notes

VIEWS = views_of("rotations and flips")  # all there are
MOST_COLUMNS = 100_000
MAY_BE_TOLD = {
    "reference",
    "border",
    "borders_exchanged",
    "cells",
    "hidden",
    "evened",
    "style",
}  # of what was found, besides what always is


def facts_of(notes: Notes) -> dict[str, Any]:
    """The share of a client's samples that the reference model gets wrong, and its view if clients are aligned."""
    views = views_noted(notes)
    return wrong_shares(notes) | ({"views": list(views)} if views else {})


def are_facts(table: dict[str, Any]) -> bool:
    """Whether these can be the facts of one client; a client that tells none has {}."""
    if not table:
        return True
    if "shortcut" in table:
        return (
            set(table) <= {"shortcut", "views", "right"}
            and _tells_shortcut(table)
            and _are_views(table.get("views", []))
            and _are_shares(table.get("right", []))
        )
    reference, views = table.get("reference"), table.get("views", [])
    wrong = reference.get("wrong") if isinstance(reference, dict) else None
    return (
        set(table) <= {"reference", "views"}
        and isinstance(wrong, list)
        and len(wrong) == 1
        and all(type(share) in (int, float) and 0 <= share <= 1 for share in wrong)
        and _are_views(views)
    )


def _are_views(views: Any) -> bool:
    return isinstance(views, list) and len(views) <= 1 and all(type(view) is int and view in VIEWS for view in views)


def _are_cells(cells: Any) -> bool:
    return (
        isinstance(cells, list)
        and len(cells) <= GRID**2
        and all(type(cell) is int and 0 <= cell < GRID**2 for cell in cells)
    )


def _are_columns(places: Any) -> bool:
    return (
        isinstance(places, list)
        and len(places) <= MOST_COLUMNS
        and all(type(place) is int and 0 <= place < MOST_COLUMNS for place in places)
    )


def _is_style(style: Any) -> bool:
    return (
        isinstance(style, dict)
        and set(style) == {"columns", "compared"}
        and style["compared"] in SOURCES[1:]
        and _are_columns(style["columns"])
    )


def _are_shares(rows: Any) -> bool:
    """Of one client, one for each context; -1 where there is none to tell."""
    return (
        isinstance(rows, list)
        and len(rows) <= 1
        and all(isinstance(row, list) and len(row) <= MOST_COLUMNS for row in rows)
        and all(type(share) in (int, float) and (share == -1 or 0 <= share <= 1) for row in rows for share in row)
    )


def _tells_shortcut(table: dict[str, Any]) -> bool:
    found = table.get("shortcut")
    if not isinstance(found, dict):
        return False
    reference = found.get("reference", {"chosen": -1})
    columns, directions = found.get("left_out"), found.get("directions")
    return (
        set(found) - MAY_BE_TOLD == {"varies_between", "left_out", "directions", "kept"}
        and found.get("borders_exchanged", True) is True
        and found.get("border", BORDERS[0]) in BORDERS
        and _are_cells(found.get("cells", []))
        and _are_cells(found.get("hidden", []))
        and found.get("evened", True) is True
        and isinstance(reference, dict)
        and set(reference) == {"chosen"}
        and type(reference["chosen"]) is int
        and -1 <= reference["chosen"] < 64
        and found["varies_between"] in SOURCES
        and type(found["kept"]) is bool
        and _are_columns(columns)
        and ("style" not in found or _is_style(found["style"]))
        and isinstance(directions, list)
        and len(directions) <= MOST_DIRECTIONS
        and all(isinstance(row, list) and len(row) <= MOST_COLUMNS for row in directions)
        and all(type(value) in (int, float) and -1 <= value <= 1 for row in directions for value in row)
    )


def join_facts(each: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of all clients as one; {} where one of them tells none."""
    if not all(each):
        return {}
    found: dict[str, Any]
    if "shortcut" in each[0]:  # worked out from what all clients know: the same at each
        if any(own.get("shortcut") != each[0]["shortcut"] for own in each):
            return {}
        found = {"shortcut": each[0]["shortcut"]}
        if any("right" in own for own in each):
            found["right"] = [own["right"][0] if own.get("right") else [] for own in each]
    else:
        found = {"reference": {"wrong": [share for own in each for share in own["reference"]["wrong"]]}}
    views = [view for own in each for view in own.get("views", [])]
    return found | ({"views": views} if views else {})
