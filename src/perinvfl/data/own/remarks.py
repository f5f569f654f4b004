"""Columns that can be trained on but should be looked at: gaps, identifiers, numbers that stand for missing ones,
columns that give the client or the label away. Nothing is changed here; each remark says what could be done."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from perinvfl.core.naming import listed, name_of, words_of
from perinvfl.core.toml_text import toml_key
from perinvfl.data.own.readers.columns import Column
from perinvfl.data.own.rows import MISSING, number_of

LEAST_ROWS = 20  # fewer values say nothing about a column
FEW = 10  # distinct values that may well be codes, or levels
CODES = frozenset({-1.0, 0.0, *(sign * (10.0**n - k) for sign in (1, -1) for n in range(1, 7) for k in (1, 2, 3))})
ID_WORDS = frozenset(
    {"id", "ids", "uid", "uuid", "guid", "mrn", "ssn", "key", "index", "idx", "nr", "no", "number", "row"}
)


@dataclass(frozen=True)
class Remark:
    column: str
    kind: str  # missing, identifier, stand-in, client, label, category, codes
    what: str

    def __str__(self) -> str:
        return f"{self.column}: {self.what}"


class Clients:
    """Which client each row is of."""

    def __init__(self, of_row: Sequence[str]) -> None:
        self.of_row = of_row  # [n]
        self.names = list(dict.fromkeys(of_row))
        place = {name: number for number, name in enumerate(self.names)}
        self.numbers = torch.tensor([place[name] for name in of_row])  # [n]

    def count(self, rows: Tensor) -> Counter[str]:
        """By client, of the rows [n] that are true."""
        counts = torch.bincount(self.numbers[rows], minlength=len(self.names)).tolist()
        return Counter({name: count for name, count in zip(self.names, counts, strict=True) if count})


@dataclass(frozen=True)
class Values:
    """One column with the client of every row."""

    name: str
    texts: list[str]  # [n] as they stand; "" where missing
    numbers: Tensor  # [n] float64; NaN where missing or no number
    clients: Clients

    @classmethod
    def of(cls, name: str, column: Column, clients: Clients) -> "Values":
        if isinstance(column, Tensor):
            texts = ["" if math.isnan(value) else name_of(value) for value in column.tolist()]
            return cls(name, texts, column.double(), clients)
        cells = {cell: "" if cell.strip().lower() in MISSING else cell.strip() for cell in set(column)}
        known = {cell: number_of(text) for cell, text in cells.items()}
        numbers = {cell: math.nan if number is None else number for cell, number in known.items()}
        read = torch.tensor([numbers[cell] for cell in column], dtype=torch.float64)
        return cls(name, [cells[cell] for cell in column], read, clients)

    @cached_property
    def there(self) -> list[int]:
        """Rows that have a value."""
        return [row for row, text in enumerate(self.texts) if text]

    @cached_property
    def is_text(self) -> bool:
        return 2 * int((~self.numbers.isnan()).sum()) < len(self.there)

    @cached_property
    def distinct(self) -> Counter[str]:
        counts = Counter(self.texts)
        counts.pop("", None)
        return counts


def column_remarks(
    features: Mapping[str, Column], client: Sequence[str], labels: Sequence[str], categories: Sequence[str]
) -> list[Remark]:
    """In the order of the columns; codes last, in one remark.

    labels: names of classes, row by row; empty for a quantity. categories: columns declared as such.
    """
    found: list[Remark] = []
    few, clients = [], Clients(client)
    for name, column in features.items():
        values = Values.of(name, column, clients)
        if len(values.there) < len(client):
            found.append(Remark(name, "missing", _missing(values)))
        if len(values.there) < LEAST_ROWS:
            continue
        kinds = {"identifier": _identifier(values), "client": _names_client(values)}
        kinds |= {"label": _gives_label(values, labels), "stand-in": _stand_in(values)}
        found += [Remark(name, kind, what) for kind, what in kinds.items() if what]
        if values.is_text and not kinds["identifier"]:
            found.append(Remark(name, "category", _levels(values)))
        if name not in categories and _few_whole_numbers(values):
            few.append(name)
    if few:
        what = "few whole numbers each; if they are codes and not amounts, name them in categories"
        found.append(Remark(", ".join(few), "codes", what))
    return found


def _missing(values: Values) -> str:
    missing = torch.tensor([not text for text in values.texts])
    gone, rows = values.clients.count(missing), values.clients.count(torch.ones_like(missing))
    told = f"{int(missing.sum())} of {len(missing)} missing"
    most = [client for client in rows if 2 * gone[client] >= rows[client] >= 5]
    least = min(rows, key=lambda client: gone[client] / rows[client])
    if most and least not in most and gone[least] <= 0.1 * rows[least]:
        where = listed([f"{gone[client]} of {rows[client]} at {client}" for client in most], 4)
        told += f": {where}, but {gone[least]} of {rows[least]} at {least}"
    return told


def _identifier(values: Values) -> str:
    """Why a column looks like the number or the name of a row; empty where it does not."""
    count, different = len(values.there), len(values.distinct)
    advice = "; if it names rows, name it in ignore"
    if values.is_text:
        unlike = different >= 0.9 * count
        return f"looks like an identifier: {different} different texts in {count} rows{advice}" if unlike else ""
    numbers = values.numbers[~values.numbers.isnan()]
    whole = bool((numbers == numbers.round()).all())
    steps = numbers.diff()
    rising = bool((steps > 0).all()) or bool((steps < 0).all())
    named = bool(ID_WORDS & set(words_of(values.name)))
    if rising:
        return (
            f"looks like a running number or a time: it {'rises' if steps[0] > 0 else 'falls'} from row to row{advice}"
        )
    if whole and (different == count or (named and different >= 0.9 * count)):
        return f"looks like an identifier: {different} different whole numbers in {count} rows{advice}"
    return ""


def _names_client(values: Values) -> str:
    """A column that has one value at each client, and several in all."""
    if not 1 < len(values.distinct) <= len(values.clients.names):
        return ""
    pairs = {(values.clients.of_row[row], values.texts[row]) for row in values.there}
    if len(pairs) == len({client for client, _ in pairs}):
        return "is the same in all rows of a client, so it identifies the client and nothing else; consider ignore"
    return ""


def _gives_label(values: Values, labels: Sequence[str]) -> str:
    """A column of few values each of which comes with one label only."""
    if not labels or not 2 <= len(values.distinct) <= len(values.there) // 5:
        return ""
    with_label = {(values.texts[row], labels[row]) for row in values.there if labels[row]}
    if len({label for _, label in with_label}) < 2 or len(with_label) > len(values.distinct):
        return ""
    advice = "if it is known only afterwards, name it in ignore"
    return f"gives the label away: each of its values comes with one label only; {advice}"


def _stand_in(values: Values) -> str:
    """A number that may stand for a missing one: far from all others, or filled in at one client alone."""
    if values.is_text:
        return ""
    known = ~values.numbers.isnan()
    numbers = values.numbers[known]
    distinct, counts = numbers.unique(return_counts=True)
    if len(distinct) <= FEW:
        return ""
    at_clients = values.clients.count(known)
    candidates = torch.stack([distinct[0], distinct[-1], distinct[counts.argmax()]]).tolist()
    for value in dict.fromkeys(candidates):  # the least, the largest and the most frequent
        rest, count = numbers[numbers != value], int((numbers == value).sum())
        far = _distance(value, rest)
        mine = values.clients.count(values.numbers == value)
        shares = [mine[client] / rows for client, rows in at_clients.items() if rows >= LEAST_ROWS]
        one_client = bool(shares) and max(shares) >= 0.5 and min(shares) <= 0.05
        if value in CODES and len(shares) > 1:  # such as 0 in a part of one client's rows, and nowhere else
            *others, most = sorted(shares)
            one_client = one_client or (most >= 0.2 and max(others) <= 0.01)
        if one_client or (count >= 3 and far > 1) or (value in CODES and far > 3):
            return _stand_in_words(values.name, value, count, rest, mine, at_clients)
    return ""


def _distance(value: float, rest: Tensor) -> float:
    """From a value to the nearest other one, in units of the quartiles' distance; 0 where it lies among the others."""
    if float(rest.min()) < value < float(rest.max()):
        return 0.0
    low, high = torch.quantile(rest[:: max(1, len(rest) // 1_000_000)], torch.tensor([0.25, 0.75]).double()).tolist()
    nearest = float((rest - value).abs().min())
    return nearest / (high - low) if high > low else math.inf


def _stand_in_words(
    name: str, value: float, count: int, rest: Tensor, mine: Counter[str], at_clients: Counter[str]
) -> str:
    rows = sum(at_clients.values())
    order = sorted(mine, key=lambda client: -mine[client] / at_clients[client])
    where = listed([f"{mine[client]} of {at_clients[client]} at {client}" for client in order], 4)
    without = [client for client in at_clients if client not in mine]
    nobody = f"; none at {listed(without, 3)}" if without and len(at_clients) > 1 else ""
    return (
        f"{value:g} stands in {count} of {rows} rows ({where}{nobody}), all others are from {float(rest.min()):g} to "
        f"{float(rest.max()):g}: does it stand for a missing value? If so, declare it: missing_values = "
        f"{{{toml_key(name)} = {value:g}}}"
    )


def _levels(values: Values) -> str:
    levels = [level for level, _ in values.distinct.most_common()]
    return f"text, so a category of {len(levels)} levels ({listed(levels, 4)}): one column each, rare ones together"


def _few_whole_numbers(values: Values) -> bool:
    numbers = values.numbers[~values.numbers.isnan()]
    return not values.is_text and 3 <= len(values.distinct) <= FEW and bool((numbers == numbers.round()).all())
