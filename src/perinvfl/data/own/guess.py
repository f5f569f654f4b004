"""Which columns of a table are the label, the client and the context, guessed from their names and values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from perinvfl.core.naming import listed, name_of, thing_of
from perinvfl.data.own.readers.tables import Cells
from perinvfl.data.own.rows import MISSING, MOST_CLASSES, in_order, number_of

ROLES = ("label", "client", "context")
WORDS = {
    "label": (
        "label", "target", "y", "outcome", "class", "diagnosis", "disease", "ill", "sick", "event", "death", "died",
        "dead", "mortality", "survived", "response", "readmitted", "readmission", "churn", "default", "fraud", "result",
    ),
    "client": (
        "client", "site", "hospital", "clinic", "center", "centre", "institution", "institute", "practice", "bank",
        "branch", "school", "station", "facility", "store", "shop", "farm", "plant", "company", "department", "ward",
        "provider", "device", "sensor", "user", "country", "region", "city", "location", "state", "source",
    ),
    "context": (
        "context", "environment", "env", "domain", "year", "period", "quarter", "season", "month", "wave", "batch",
        "scanner", "machine", "cohort", "phase", "campaign", "protocol", "era", "version", "shift", "week", "term",
    ),
}  # fmt: skip
LEAST_ROWS = {"client": 10, "context": 5}  # on average, of each
MOST_NAMES = {"client": 1000, "context": 30}


@dataclass(frozen=True)
class Guess:
    column: str  # empty: none
    why: str


def guess_roles(cells: Cells, given: Mapping[str, str]) -> dict[str, Guess]:
    """For each role. given: roles that are decided already; an empty name says that there is no such column.

    >>> columns = {"age": ["61", "43"] * 20, "clinic": ["a"] * 20 + ["b"] * 20, "ill": ["yes", "no"] * 20}
    >>> cells = Cells("", list(columns), columns, [""] * 40, [])
    >>> {role: guess.column for role, guess in guess_roles(cells, {}).items()}
    {'label': 'ill', 'client': 'clinic', 'context': ''}
    """
    names = {column: _names(cells, column) for column in cells.header if column}
    found = {role: Guess(column, "as asked") for role, column in given.items()}
    for role in ROLES:  # by name first: what is left is guessed from values alone
        if role not in found:
            taken = {guess.column for guess in found.values()}
            guess = _by_name(role, {column: values for column, values in names.items() if column not in taken})
            found |= {role: guess} if guess else {}
    for role in ROLES:
        if role not in found:
            taken = {guess.column for guess in found.values()}
            found[role] = _by_values(role, {column: values for column, values in names.items() if column not in taken})
    return {role: found[role] for role in ROLES}


def _names(cells: Cells, column: str) -> list[str]:
    """What stands in a column; "" where nothing does."""
    raw = cells.columns[column]
    values = raw.tolist() if isinstance(raw, Tensor) else raw
    names = [name_of(value) for value in values]
    return ["" if name.lower() in MISSING else name for name in names]


def _by_name(role: str, names: Mapping[str, Sequence[str]]) -> Guess | None:
    """The column with the likeliest name among those whose values would do: one word before several."""
    ranked = []
    for place, (column, values) in enumerate(names.items()):
        words = thing_of(column)
        hits = [WORDS[role].index(word) for word in words if word in WORDS[role]]
        if hits and _would_do(role, values):
            ranked.append((len(words) > 1, min(hits), place, column))
    if not ranked:
        return None
    (_, hit, _, column), *others = sorted(ranked)
    other = f"; {listed(other for *_, other in others)} could be it too" if others else ""
    return Guess(column, f'its name says "{WORDS[role][hit]}", and it has {_values(names[column])}{other}')


def _by_values(role: str, names: Mapping[str, Sequence[str]]) -> Guess:
    if role == "context":
        return Guess("", "no column is named like one; --context COLUMN names it if there is one")
    if role == "client":
        texts = [c for c, values in names.items() if _is_text(values) and _would_do(role, values)]
        if len(texts) == 1:
            return Guess(texts[0], f"it is the only column of text that could name clients: {_values(names[texts[0]])}")
        return Guess("", f"{listed(texts)} could name them" if texts else "no column is named like one")
    for right, why in (
        (lambda values: len(set(values) - {""}) == 2, "it is the last column with two values"),
        (lambda values: 2 < len(set(values) - {""}) <= MOST_CLASSES, "it is the last column with few values"),
        (lambda values: not _is_text(values), "it is the last column of numbers"),
    ):
        fitting = [column for column, values in names.items() if right(values)]
        if fitting:
            last = list(names)[-1]
            such = f", such as {last}" if last != fitting[-1] else ""
            another = f"if another column is to be predicted{such}, name it with --label"
            return Guess(fitting[-1], f"{why}: {_values(names[fitting[-1]])}; {another}")
    return Guess("", "no column looks like something to predict")


def _would_do(role: str, values: Sequence[str]) -> bool:
    distinct = set(values) - {""}
    if role == "label":
        return len(distinct) > 1 and (not _is_text(values) or len(distinct) <= MOST_CLASSES)
    enough = len(values) >= LEAST_ROWS[role] * len(distinct)
    return "" not in values and 2 <= len(distinct) <= MOST_NAMES[role] and enough


def _is_text(values: Sequence[str]) -> bool:
    there = [value for value in values if value]
    return 2 * sum(number_of(value) is None for value in there) > len(there)


def _values(values: Sequence[str]) -> str:
    distinct = in_order(value for value in values if value)
    return f"{len(distinct)} values ({listed(distinct, 4)})"
