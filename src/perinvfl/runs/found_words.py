"""What `recommended` found and did, in words: from the record alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perinvfl.core.image_grid import GRID, cell_name
from perinvfl.core.naming import listed, with_and

CANNOT_BE_TOLD = (
    "A shortcut that is equally strong everywhere cannot be found in data. Add a context in which it breaks, or leave "
    "the column out yourself (data.ignore)."
)
WHO = {  # who answers, by what was done about the border
    None: "The answers of a plain model change their meaning",
    "discounted": "Answers by the border of the images alone change their meaning",
    "told": "You said that the border of the images is a shortcut, and its answers tell the label",
}
MARKED = f"Answers by a few cells of the images alone (on a grid of {GRID} by {GRID}: {{}}) change their meaning"
EVENED = "All images are brought to the same brightness and contrast."
MARK = (
    f"A mark on the images (on a grid of {GRID} by {GRID}, within {{}}) changes its meaning by more than chance: these "
    "cells are left out."
)
BORDER_KEPT = (
    "What is around the middle of the images predicts the label, equally well everywhere. If it should not count, set "
    "contexts.hide_middle."
)


@dataclass(frozen=True)
class Names:
    """What clients, contexts and columns are called; empty where they have numbers alone."""

    features: Sequence[str] = ()
    clients: Sequence[str] = ()
    contexts: Sequence[str] = ()

    @classmethod
    def of(cls, schema: dict[str, Any]) -> "Names":
        """As a record has them."""
        return cls(*(schema.get(key, ()) for key in ("features", "clients", "contexts")))


class Facts(dict[str, Any]):
    """What was found, as plain values, which can say so in words."""

    def __init__(self, found: dict[str, Any], names: Names = Names()) -> None:
        super().__init__(found)
        self.names = names

    def __str__(self) -> str:
        return found_in_words(self, self.names) or super().__repr__()


def found_in_words(found: dict[str, Any], names: Names = Names()) -> str:
    """One paragraph; empty where nothing was looked for."""
    shortcut = found.get("shortcut")
    if shortcut is None:
        return ""
    border = shortcut.get("border")
    cells = shortcut.get("cells", [])
    who = MARKED.format("; ".join(_ends([cell_name(cell) for cell in cells]))) if cells else WHO.get(border, WHO[None])
    answers = _answers(who, found.get("right", []), names)
    if answers and shortcut.get("borders_exchanged"):
        answers += " In training, images exchange their borders."
    hidden = shortcut.get("hidden", [])
    if hidden:
        mark = MARK.format("; ".join(_ends([cell_name(cell) for cell in hidden])))
        answers = f"{mark} {answers}".strip()
    style = _style(shortcut["style"], names.features) if "style" in shortcut else ""
    if shortcut["varies_between"] is None and answers:
        return f"{style} {answers}".strip()
    kept = BORDER_KEPT if border == "kept" else ""
    return " ".join(filter(None, [_left_out(shortcut, names.features, bool(answers)), style, answers, kept]))


def _answers(who: str, right: Sequence[Sequence[float]], names: Names) -> str:
    """Of a model that learns what is easy, or of the border of images: what is discounted."""
    known = {client: [(k, share) for k, share in enumerate(row) if share >= 0] for client, row in enumerate(right)}
    known = {client: row for client, row in known.items() if row}
    if not known:
        return ""
    spread = {client: max(s for _, s in row) - min(s for _, s in row) for client, row in known.items()}
    widest = max(spread, key=lambda client: spread[client])
    if spread[widest] > 0:
        place = _called("client", widest, names.clients)
        shares = [f"{100 * share:.0f} % of {_called('context', k, names.contexts)}" for k, share in known[widest]]
        told = f"at {place} they are right in {with_and(_ends(shares))}"
    else:
        ordered = sorted(known, key=lambda client: -known[client][0][1])
        shares = [f"{100 * known[i][0][1]:.0f} % at {_called('client', i, names.clients)}" for i in ordered]
        told = f"they are right in {with_and(_ends(shares))}"
    return f"{who}: {told}. What they say about the label is discounted."


def _ends(shares: Sequence[str]) -> Sequence[str]:
    return shares if len(shares) <= 4 else [*shares[:2], "...", shares[-1]]


def _called(what: str, number: int, names: Sequence[str]) -> str:
    return str(names[number]) if number < len(names) else f"{what} {number}"


def _left_out(shortcut: dict[str, Any], features: Sequence[str], discounted: bool) -> str:
    between = shortcut["varies_between"]
    if between is None:
        if shortcut.get("style"):
            return "The data are left as they are."
        return f"Nothing changes its meaning beyond chance, so the data are left as they are. {CANNOT_BE_TOLD}"
    if shortcut.get("evened") and shortcut["directions"]:
        return f"{_mixtures(shortcut, features)} {EVENED}"
    if shortcut.get("evened"):
        return f"The brightness of the images changes its meaning between {between} by more than chance. {EVENED}"
    if shortcut["kept"]:
        found = f"Every column whose mean predicts the label changes its meaning between {between}: none was left out"
        return f"{found}." if discounted else f"{found}, and models will rely on them."
    columns = _columns(shortcut["left_out"], features)
    if columns:
        verb, they = ("changes its meaning", "it is") if len(columns) == 1 else ("change their meaning", "they are")
        return f"{with_and(columns)} {verb} between {between} by more than chance: {they} left out."
    return _mixtures(shortcut, features)


def _style(style: dict[str, Any], features: Sequence[str]) -> str:
    """Of columns that differ between clients and stay."""
    named = _columns(style["columns"], features)
    one, columns = len(named) == 1, with_and(named)
    verb, counts, it = ("differs", "counts as", "it is") if one else ("differ", "count as", "they are")
    if style["compared"] == "contexts":
        return (
            f"{columns} {verb} between clients but not between contexts, and so {counts} their own style. If {it} a "
            'shortcut, name a context in which that shows, or none (data.context = ""): then clients are compared.'
        )
    return (
        f"{columns} {verb} somewhat between clients, and {counts} their own style. If {it} a shortcut, leave out what "
        "models should not use (data.ignore), or name a context in which it shows."
    )


def _columns(places: Sequence[int], features: Sequence[str]) -> list[str]:
    """Each column of the file once, also where several inputs stand for it: its levels, or the sign that it is missing.

    >>> features = ("age", "age missing", "form=A", "form=B", "form=other", "ward=1", "ward=2", "ward=3", "sbp missing")
    >>> _columns([0, 1, 2, 3, 4, 5, 7], features)
    ['age', 'form', 'ward (1, 3)']
    >>> _columns([1, 5, 9], features)
    ['age missing', 'ward=1', 'column 10']
    """
    owners = [_owner(feature, set(features)) for feature in features]
    parts: dict[str, list[str]] = {}
    for name in (_name(place, features) for place in places):
        parts.setdefault(_owner(name, set(features)), []).append(name)
    return [_column(owner, names, owners.count(owner)) for owner, names in parts.items()]


def _column(owner: str, names: list[str], inputs: int) -> str:
    """names: of its inputs, those that are meant."""
    if owner in names or len(names) == inputs > 1:
        return owner
    return f"{owner} ({listed((name[len(owner) + 1 :] for name in names), most=4)})" if len(names) > 1 else names[0]


def _owner(feature: str, features: set[str]) -> str:
    """The column that an input stands for, by the names that encoded columns get."""
    column = feature.removesuffix(" missing")
    if column != feature and (column in features or any(name.startswith(f"{column}=") for name in features)):
        return column
    column = feature.partition("=")[0]
    return feature if not column or column in features else column


def _mixtures(shortcut: dict[str, Any], features: Sequence[str]) -> str:
    mixed = "; ".join(_mixture(way, features) for way in shortcut["directions"])
    what = "A mixture of columns" if features else "A mixture of columns or colours"
    between = shortcut["varies_between"]
    return f"{what} ({mixed}) changes its meaning between {between} by more than chance: it is removed from the inputs."


def _name(place: int, features: Sequence[str]) -> str:
    return features[place] if place < len(features) else f"column {place + 1}"


def _mixture(way: Sequence[float], features: Sequence[str]) -> str:
    strongest = sorted(range(len(way)), key=lambda place: -abs(way[place]))[:4]
    words = ""
    for place in sorted(strongest):
        name = features[place] if place < len(features) else f"input {place + 1}"
        sign = "−" if way[place] < 0 else "+"
        words += f" {sign} " if words else sign.strip("+")
        words += f"{abs(way[place]):.2f} × {name}"
    return words + (" + ..." if len(way) > 4 else "")
