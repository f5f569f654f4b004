"""Runs read with every accuracy class-balanced, where one class is rare."""

import dataclasses
from typing import Any

from perinvfl.learning.groups import Counts, balanced_accuracy, constant_hits
from perinvfl.runs.records import Event, Run


def has_groups(run: Run) -> bool:
    return "groups" in run.start["notes"]


def class_balanced(run: Run) -> Run:
    """The same run with every accuracy class-balanced, where its tests have groups.

    What to show where one class is rare, and a constant answer would look best by plain accuracy.
    """
    if not has_groups(run):
        return run
    there, majority = (run.start["notes"]["groups"][key] for key in ("counts", "majority"))

    def by_client(right: dict[str, Counts]) -> dict[str, list[float]]:
        return {
            case: [balanced_accuracy([hits], [counts]) for hits, counts in zip(rows, there[case], strict=True)]
            for case, rows in right.items()
        }

    def balanced(event: Event) -> Event:
        changed: dict[str, Any] = {}
        for kind in ("personal", "global"):
            if f"{kind} groups" in event:
                changed[kind] = event[kind] | by_client(event[f"{kind} groups"])
        return event | changed

    constant = by_client({case: constant_hits(counts, majority) for case, counts in there.items()})
    notes = run.start["notes"] | {"constant": run.start["notes"]["constant"] | constant}
    start, *others = run.events
    return dataclasses.replace(run, events=[start | {"notes": notes}, *map(balanced, others)])
