"""Which column of a table is the label, the client, the context, and which are features."""

from collections.abc import Sequence
from pathlib import Path

from perinvfl.core.config import suggest
from perinvfl.data.own.rows import BadData, Columns, Fault


def column_roles(path: Path | str, header: Sequence[str], columns: Columns) -> Columns:
    """The columns as they will be used, every feature named; refuses a header that cannot be meant."""
    faults = []
    for place, name in enumerate(header, start=1):
        if not name:
            faults.append(Fault("", "", f"column {place} has no name"))
        elif list(header).index(name) < place - 1:
            faults.append(Fault("", name, f"stands twice, in places {list(header).index(name) + 1} and {place}"))
    for role in ("label", "client", "context"):
        name = getattr(columns, role)
        if name and name not in header:
            none = "" if role == "label" else f', or {role} = "" if there is none'
            faults.append(
                Fault(
                    "",
                    "",
                    f'there is no column "{name}"; set {role} (--{role} in a command) to the column that is meant{none}'
                    f"{_near(name, header)}",
                )
            )
    if not columns.label:
        faults.append(Fault("", "", "label must name the column that is to be predicted"))
    given = [name for name in (columns.label, columns.client, columns.context) if name]
    for name in dict.fromkeys(name for name in given if given.count(name) > 1):
        faults.append(Fault("", name, "cannot be two of label, client and context"))
    for key in ("features", "ignore"):
        for name in getattr(columns, key):
            if name not in header:
                faults.append(Fault("", "", f'{key} names "{name}", which is no column{_near(name, header)}'))
            elif name in given:
                faults.append(Fault("", name, f"is the label, client or context, and cannot be in {key}"))
    taken = {*given, *columns.ignore}
    features = columns.features or tuple(name for name in header if name not in taken)
    for name in columns.categories:
        if name not in features or name in columns.ignore:
            faults.append(Fault("", "", f'categories names "{name}", which is no feature{_near(name, features)}'))
    if not features and not faults:
        faults.append(Fault("", "", "no column is left to predict from"))
    if faults:
        raise BadData(str(path), faults)
    return columns._replace(features=tuple(name for name in features if name not in columns.ignore))


def _near(name: str, header: Sequence[str]) -> str:
    hint = suggest(name, [column for column in header if column])
    return hint.rstrip("?.").replace("; known are", "; there are")
