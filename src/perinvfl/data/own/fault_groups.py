"""Many faults in few lines: those of the whole file first, then rows, then column by column."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from perinvfl.core.naming import listed
from perinvfl.data.own.rows import Fault

MOST_PLACES, MOST_EXAMPLES = 3, 3
CELL = re.compile(r'^(?:"(?P<text>.*)"|(?P<number>[-+.\w]+)) (?P<what>(?:is|stands) .*)$', re.S)
MISSING = re.compile("the (value|label|client|context) is missing|stands for a missing value")
PLURAL = {"is not a number": "are not numbers", "is not a finite number": "are not finite numbers"}


@dataclass(frozen=True)
class FaultGroup:
    """Faults of one kind in one column."""

    column: str  # empty: of whole rows, or of the whole file
    what: str
    count: int
    first: tuple[str, ...]  # places
    message: str


def group_faults(faults: Sequence[Fault], rows: int) -> list[FaultGroup]:
    """rows: how many there are in all.

    >>> gaps = [Fault(f"line {line}", "hb", "the value is missing") for line in range(2, 82)]
    >>> for group in group_faults([*gaps, Fault("", "", 'there is no column "site"')], 1800):
    ...     print(group.message)
    there is no column "site"
    hb: 80 of 1800 missing (line 2, line 3, line 4, ...)
    """
    alike: dict[tuple[str, str], list[tuple[Fault, str]]] = {}
    for fault in sorted(faults, key=lambda fault: (bool(fault.column), bool(fault.where))):  # stable
        what, example = _kind(fault.what)
        alike.setdefault((fault.column, what), []).append((fault, example))
    order = list(dict.fromkeys(fault.column for fault in faults))
    groups = [_group(column, what, found, rows) for (column, what), found in alike.items()]
    return sorted(groups, key=lambda group: (bool(group.column), order.index(group.column) if group.column else 0))


def _kind(what: str) -> tuple[str, str]:
    """What is wrong with a cell, without the cell; and the cell, where the words name it."""
    match = CELL.match(what)
    kind, example = (match["what"], match["text"] or match["number"] or "") if match else (what, "")
    return ("missing", "") if MISSING.fullmatch(kind) else (kind, example)


def _group(column: str, what: str, found: list[tuple[Fault, str]], rows: int) -> FaultGroup:
    places = tuple(fault.where for fault, _ in found if fault.where)[:MOST_PLACES]
    if len(found) == 1:
        return FaultGroup(column, what, 1, places, str(found[0][0]))
    more = ", ..." if len(found) > len(places) else ""
    where = f"{', '.join(places)}{more}" if places else ""
    cells = [f'"{cell}"' for cell in dict.fromkeys(example for _, example in found if example)]
    about = f"{listed(cells, MOST_EXAMPLES)}; {where}" if cells else where
    if not column:
        return FaultGroup(column, what, len(found), places, f"{len(found)} rows: {what} ({about})")
    plural = PLURAL.get(what, re.sub("^is ", "are ", what))
    words = what if what == "missing" else f"cells {plural}" if cells else f"rows: {what}"
    return FaultGroup(column, what, len(found), places, f"{column}: {len(found)} of {rows} {words} ({about})")
