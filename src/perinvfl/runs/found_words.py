"""What `recommended` found and did, in words: from the record alone."""

from collections.abc import Sequence
from typing import Any

CANNOT_BE_TOLD = (
    "A shortcut that is equally strong everywhere cannot be told from data: a context in which it breaks would tell, "
    "or a column that you leave out yourself (data.ignore)."
)


def found_in_words(found: dict[str, Any], features: Sequence[str] = ()) -> str:
    """One paragraph; empty where nothing was looked for."""
    shortcut = found.get("shortcut")
    if shortcut is None:
        return ""
    between = shortcut["varies_between"]
    if between is None:
        return f"Nothing changes its meaning beyond chance, so the data are left as they are. {CANNOT_BE_TOLD}"
    if shortcut["kept"]:
        return (
            f"All that tells the label changes its meaning between {between}: nothing could be left out, and models "
            "will lean on it."
        )
    columns = [_name(place, features) for place in shortcut["left_out"]]
    if columns:
        verb, they = ("changes its meaning", "it is") if len(columns) == 1 else ("change their meaning", "they are")
        return f"{_listed(columns)} {verb} between {between} by more than chance: {they} left out."
    ways = shortcut["directions"]
    mixed = "; ".join(_mixture(way, features) for way in ways)
    what = "a mixture of columns" if features else "a mixture of columns or channels"
    return f"What changes its meaning between {between} is {what} ({mixed}): it is taken away."


def _name(place: int, features: Sequence[str]) -> str:
    return features[place] if place < len(features) else f"column {place + 1}"


def _mixture(way: Sequence[float], features: Sequence[str]) -> str:
    strongest = sorted(range(len(way)), key=lambda place: -abs(way[place]))[:4]
    parts = [f"{way[place]:+.2f} {_name(place, features) if features else place + 1}" for place in sorted(strongest)]
    return " ".join(parts) + (" ..." if len(way) > 4 else "")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
