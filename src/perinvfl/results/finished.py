"""Finished tables inside the package: what `perinvfl table NAME` shows where the records behind it are not at hand.

An installed package has no results/, which is larger than all its code. `scripts/make_finished_tables.py` makes these
files from it: each published search under every rule and score, and the digest of every file it was made from.
"""

import dataclasses
import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perinvfl.core.unpacking import parse_json, unxz
from perinvfl.errors import UserError
from perinvfl.results.table import Row, Table

FOLDER, ENDING = Path(__file__).parent / "finished_tables", ".json.xz"
WITH_RECORDS = ("heart_disease", "worlds")
NOTE = "A finished table from the installed package; the records behind it are in results/ of the project's folder."


@dataclass(frozen=True)
class Finished:
    """One published table, or a part of it such as beyond/rc_mnist."""

    name: str
    rule: str  # those that the table is about
    score: str
    tables: dict[str, dict[str, Table]]  # rule -> score -> table

    def table(self, rule: str = "", score: str = "") -> Table:
        by_score = self.tables.get(rule or self.rule)
        if by_score is None:
            others = ", ".join(self.tables)
            raise UserError(f"--rule {rule}: the records of {self.name} hold nothing that it looks at; try {others}.")
        found = by_score.get(score or self.score)
        if found is None:
            raise UserError(f"--score {score}: the table {self.name} has {', '.join(by_score)}.")
        return dataclasses.replace(found, notes=[*found.notes, NOTE])

    def as_plain(self) -> dict[str, Any]:
        made = {rule: {s: dataclasses.asdict(t) for s, t in by.items()} for rule, by in self.tables.items()}
        return {"rule": self.rule, "score": self.score, "tables": made}


def finished_names() -> list[str]:
    """
    >>> "beyond" in finished_names()
    True
    """
    return sorted(path.name.removesuffix(ENDING) for path in FOLDER.glob(f"*{ENDING}"))


def published_names() -> list[str]:
    """Every table that `perinvfl table` knows by name; the last ones are small, and shipped with their records."""
    return [*finished_names(), *WITH_RECORDS]


def read_finished(place: Path) -> Finished | None:
    """The table of this name, whole or a part; None where there is none."""
    first = place.parts[0] if place.parts else ""
    if first not in finished_names():
        return None
    try:
        plain = read_file(first)["tables"].get(place.as_posix())
        if plain is None:
            return None
        tables = {rule: {s: _table(t) for s, t in by.items()} for rule, by in plain["tables"].items()}
        return Finished(place.as_posix(), plain["rule"], plain["score"], tables)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f"{FOLDER / first}{ENDING} is damaged: reinstall perinvfl to restore it.") from None


def read_file(name: str) -> dict[str, Any]:
    """`made_from`, the digest of each file of records, and `tables` by name."""
    return parse_json(unxz((FOLDER / f"{name}{ENDING}").read_bytes()))


def written(made_from: dict[str, str], tables: list[Finished]) -> bytes:
    """The content of a file; the same tables always give the same bytes."""
    content = {"made_from": made_from, "tables": {made.name: made.as_plain() for made in tables}}
    return lzma.compress(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(), preset=9)


def check_has_records(place: Path) -> None:
    """Figures and reports are made from records; a finished table is not enough for them."""
    if not place.exists() and place.as_posix() in WITH_RECORDS:
        raise UserError(
            f"{place} is a published table: `perinvfl table {place}` shows it. Figures and reports are made from runs; "
            "give the folder that holds them."
        )
    if not place.exists() and read_finished(place) is not None:
        raise UserError(
            f"The installed package has the finished table {place} (`perinvfl table {place}`), but not the records "
            f"behind it; give their folder, which is results/{place} in the project's folder."
        )


def _table(plain: dict[str, Any]) -> Table:
    rows = [_row(row) for row in plain["rows"]]
    return Table(**{**plain, "rows": rows, "spectrum": tuple(plain["spectrum"]), "beyond": tuple(plain["beyond"])})


def _row(plain: dict[str, Any]) -> Row:
    """JSON knows no tuples."""
    pairs = {key: {case: tuple(pair) for case, pair in plain[key].items()} for key in ("cases", "intervals")}
    lists = {key: tuple(plain[key]) for key in ("spectrum", "rounds", "few")}
    return Row(**{**plain, **pairs, **lists})
