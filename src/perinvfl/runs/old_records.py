"""Older records: of format 1, whose label alone told the method and its place in a search, and evaluations across
machines that have no entry for a site that was away. No other module reads labels."""

import re
from typing import Any

from perinvfl.core.naming import name_of
from perinvfl.runs.facts import Facts

SEARCHED = re.compile(r"(?P<method>.+) #(?P<setting>\d+)", re.DOTALL)  # as `search` labels its trials


def facts_of_old(start: dict[str, Any]) -> Facts:
    """The facts of a run whose record does not name them: "IRM #7 without 2" is setting 7 of IRM, without client 2."""
    asked = start["asked"]
    label, client = asked["algorithm"]["label"], asked["data"].get("leave_out", -1)
    numbered = isinstance(client, int) and client >= 0  # of hospitals, later, a name
    if numbered:
        label = label.removesuffix(f" without {client}")
    searched = SEARCHED.fullmatch(label)
    return Facts(
        method=searched["method"] if searched else label,
        setting=int(searched["setting"]) if searched else None,
        seed=asked["seed"],
        fold=f"client {client}" if numbered else _context_held_out(asked["data"]),
        purpose=None,
    )


def _context_held_out(data: dict[str, Any]) -> str:
    contexts = data.get("test_contexts", ())
    return name_of(contexts[0]) if data.get("leave_one_context_out") and len(contexts) == 1 else ""


def with_all_sites(event: dict[str, Any], sites: list[str]) -> dict[str, Any]:
    """An evaluation with one entry per site: None as the score of one that was away, [] as its counts by group."""
    absent = event.get("absent", ())
    if not absent:
        return event

    def spread(row: list[Any], missing: Any) -> list[Any]:
        if len(row) != sum(site not in absent for site in sites):
            return row
        known = iter(row)
        return [missing if site in absent else next(known) for site in sites]

    kinds: dict[str, Any] = {"personal": None, "global": None, "personal groups": [], "global groups": []}
    return event | {
        kind: {case: spread(row, missing) for case, row in event[kind].items()}
        for kind, missing in kinds.items()
        if kind in event
    }
