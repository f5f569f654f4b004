"""What the events of a record hold, in one place: every record is checked against it when it is read, of any format.

Lines of format 3 have checks, so only a forged one gets here damaged. Older lines have none: what can be told of them
is whether they hold what a run writes, whether their parts fit together, and whether the run's id, a hash of what was
asked, is that of what the record says was asked. A digit changed to another digit in a score stays unnoticed there.
Does not import torch.
"""

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

from perinvfl.core.naming import LONGEST_NAME, shortened
from perinvfl.errors import UserError
from perinvfl.runs.facts import FORMAT, Facts, run_id

Event = dict[str, Any]
Form = Callable[[Any], bool]
Fields = dict[str, Form]  # by name; one that may be missing ends with "?"

CLOSED = 2  # the last format that no version adds an event or a field to
TASKS = ("binary", "multiclass", "regression")
KINDS = ("personal", "global")
LARGEST = 1e150  # of any number, so that the square of one is a number too
MOST = 10**15  # of anything counted
MOST_CLIENTS = 10**7
DEEPEST = 30  # tables and lists within each other


# Forms: whether a value is what it should be ------------------------------------------------------------------------


def text(value: Any) -> bool:
    return type(value) is str


def file_name(value: Any) -> bool:
    return text(value) and 0 < len(value) <= LONGEST_NAME and not set("/\0") & set(value) and value not in (".", "..")


def count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def flag(value: Any) -> bool:
    return type(value) is bool


def number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST


def number_or_none(value: Any) -> bool:
    return value is None or number(value)


def plain(value: Any, depth: int = 0) -> bool:
    """Whether a value of any kind is not nested deeply, and holds no number that JSON has no word for."""
    if type(value) in (dict, list):
        parts = value.values() if type(value) is dict else value
        return depth < DEEPEST and all(plain(part, depth + 1) for part in parts)
    return type(value) is not float or math.isfinite(value)


def table(value: Any) -> bool:
    return type(value) is dict and plain(value)


def none_or(form: Form) -> Form:
    return lambda value: value is None or form(value)


def list_of(form: Form) -> Form:
    return lambda value: type(value) is list and all(map(form, value))


def table_of(form: Form) -> Form:
    return lambda value: type(value) is dict and all(map(form, value.values()))


def holds(fields: Fields) -> Form:
    """A table with these fields, and perhaps others."""
    return lambda value: table(value) and not next(_faults(value, fields), "")


def _faults(value: dict[str, Any], fields: Fields) -> Iterator[str]:
    """The names of fields that are missing, or not what they should be."""
    for name, form in fields.items():
        key = name.removesuffix("?")
        if key in value:
            if not form(value[key]):
                yield key
        elif key == name:
            yield key


# What each event holds ----------------------------------------------------------------------------------------------

TEXTS, COUNTS, ROWS = list_of(text), list_of(count), list_of(number_or_none)
CASES = table_of(ROWS)  # by test case, one score per client
GROUPS = table_of(list_of(list_of(number)))  # by test case: per client, per group
SPANS = table_of(holds({"value": number_or_none, "low": number_or_none, "high": number_or_none}))
THRESHOLD = none_or(holds({"value": number_or_none, "chosen": flag, "counts": COUNTS, "few": flag}))
OF_CLIENT = holds({"samples": count, "counts": COUNTS, "few": flag, "scores": SPANS})
OF_CASE = holds({
    "mean": SPANS,
    "clients": table_of(OF_CLIENT),
    "confusion": none_or(list_of(list_of(number))),
    "calibration": none_or(list_of(table_of(number_or_none))),
    "few": TEXTS,
})  # fmt: skip
OF_MODEL = holds({
    "task": TASKS.__contains__,
    "round": count,
    "classes": TEXTS,
    "threshold": THRESHOLD,
    "cases": table_of(OF_CASE),
})  # fmt: skip
ASKED = holds({
    "data": holds({"benchmark": text}),
    "model": table,
    "training": holds({"rounds": count}),
    "algorithm": holds({"name": text, "label": text}),
    "contexts?": table,
    "federation?": table,
    "seed": count,
})  # fmt: skip
ENCODING = holds({
    "missing?": table_of(count),
    "levels?": table_of(TEXTS),
    "missing_values?": table_of(list_of(number)),
    "other?": table_of(count),
    "excluded?": count,
})  # fmt: skip
SHORTCUT = holds({
    "varies_between": none_or(text),
    "left_out": COUNTS,
    "directions": list_of(list_of(number)),
    "kept": flag,
    "style?": holds({"columns": COUNTS, "compared": text}),
    "border?": none_or(text),
    "borders_exchanged?": flag,
    "cells?": COUNTS,
    "hidden?": COUNTS,
    "evened?": flag,
})  # fmt: skip
FOUND: Fields = {"shortcut?": SHORTCUT, "right?": list_of(list_of(number)), "views?": COUNTS, "reference?": table}
NOTES = holds(FOUND | {
    "constant?": CASES,
    "sizes?": COUNTS,
    "contexts?": list_of(lambda value: count(value) or TEXTS(value)),
    "labels?": list_of(lambda value: number_or_none(value) or list_of(number)(value)),
    "groups?": holds({"names?": TEXTS, "counts": GROUPS, "majority": COUNTS}),
    "noise_variance?": table_of(list_of(number)),
    "encoding?": ENCODING,
    "ignored?": TEXTS,
})  # fmt: skip
FIT_FIELDS: Fields = {
    "models": lambda value: type(value) is float or number_or_none(value),  # no longer Infinity, as at first, but null
    "constant": number,
    "balanced?": flag,
}
NAMES = holds({"clients?": TEXTS, "contexts?": TEXTS, "classes?": TEXTS, "features?": TEXTS})

WHEN: Fields = {"round?": count, "phase?": text, "phase_round?": count}
TOTALS: Fields = {"bytes_up?": count, "bytes_down?": count, "left_out?": table_of(count), "privacy?": table}
FIELDS: dict[str, Fields] = {
    "start": {
        "format?": lambda value: type(value) is int and 1 <= value <= FORMAT,
        "id": text,
        "experiment": file_name,
        "order": count,
        "asked": ASKED,
        "spectrum": TEXTS,
        "task": TASKS.__contains__,
        "clients": lambda value: count(value) and 0 < value <= MOST_CLIENTS,
        "notes": NOTES,
        "environment": holds({"perinvfl": text}),
        "began?": text,
        "schema?": NAMES,
        "parameters?": text,
        "executor?": table,
        "sites?": TEXTS,
        "federation?": table,
        "data_seed?": count,
        "all_clients?": count,
        "method?": text,
        "setting?": none_or(count),
        "seed?": count,
        "fold?": text,
        "purpose?": none_or(table),
    },
    "prepared": {"found": holds(FOUND), "seconds": number},
    "evaluation": {
        "round": count,
        "seconds": number,
        "risks": ROWS,
        "personal?": CASES,
        "global?": CASES,
        "personal groups?": GROUPS,
        "global groups?": GROUPS,
        "balanced?": table_of(number_or_none),
        "absent?": TEXTS,
        **TOTALS,
    },
    "scores": {"round": count, "models": lambda value: bool(value) and table_of(OF_MODEL)(value)},
    "broken": {"round": count, "why": text},
    "pruned": {"round": count, "why": text},
    "end": {
        "round": count,
        "seconds": number,
        "gpu_bytes?": count,
        "training?": lambda value: type(value) is dict and not next(_faults(value, FIT_FIELDS), ""),
        "predictions?": text,
        **TOTALS,
    },
    "left out": {**WHEN, "site": text, "why": text},
    "far": {**WHEN, "site": text, "how": text},
    "partial": {**WHEN, "used": TEXTS},
    "undone": {**WHEN, "why": text},
}
ADDED_BY_2 = ("method", "setting", "seed", "fold", "purpose")


def fault_in_fields(events: list[Event]) -> str:
    """What is wrong with one of the events of a record, in words; empty where nothing is."""
    closed = events[0].get("format", 1) in range(1, CLOSED + 1)
    for line, event in enumerate(events, start=1):
        kind = event["event"]
        if (kind == "start") != (line == 1):
            return f"line {line} is {'a second start' if line > 1 else 'not the start of a run'}"
        fields = FIELDS.get(kind)
        if fields is None and closed:
            return f'line {line} is "{shortened(kind)}", which is no event of a run'
        wrong = next(_faults(event, fields or {}), "")
        if not wrong and closed and fields is not None:
            wrong = next((name for name in event if name != "event" and not {name, f"{name}?"} & fields.keys()), "")
        if wrong:
            return f'line {line} ({kind}) has no "{shortened(wrong)}" that a run would write'
    return _fault_at_start(events[0])


def _fault_at_start(start: Event) -> str:
    if start.get("format", 1) > 1:
        lacking = next((name for name in ADDED_BY_2 if name not in start), "")
        if lacking:
            return f'line 1 (start) has no "{lacking}"'
        try:
            Facts.read(start)
        except UserError as error:
            return f"line 1 (start) has a purpose that cannot be: {error}"
    if not _is_named_by_its_id(start["id"], start["asked"]):
        return "what it says was asked for does not belong to its id"
    return ""


def _is_named_by_its_id(id: str, asked: dict[str, Any]) -> bool:
    """Where own code takes part in a run, it takes part in its id too, and is not here."""
    if ":" in asked["algorithm"]["name"] or asked["model"].get("build"):
        return True
    without_path = {name: value for name, value in asked["data"].items() if name != "path"}  # of own data
    return id in (run_id(asked), run_id({**asked, "data": without_path}))


def fault_in_results(events: list[Event]) -> str:
    """What does not fit together in events that are right by themselves: a score without its test case, a client
    without its scores."""
    start, evaluations = events[0], [event for event in events if event["event"] == "evaluation"]
    notes, clients = start["notes"], start["clients"]
    if any(
        not _alike(model["cases"])
        for event in events
        if event["event"] == "scores"
        for model in event["models"].values()
    ):
        return "its scores are not the same ones of every test context and client"
    if not evaluations:
        return ""
    if "constant" not in notes:
        return "it has no scores of a constant answer"
    if not start["spectrum"]:
        return "it has evaluations, and no test context"
    if not set(start["spectrum"]) <= notes["constant"].keys():
        return "its test contexts are not those that it has scores of a constant answer for"
    constant = [notes["constant"][case] for case in start["spectrum"]]
    if any(all(score is None for score in row) for row in constant):
        return "a constant answer has no score at one of its test contexts"
    if "noise_variance" in notes and not set(start["spectrum"]) <= notes["noise_variance"].keys():
        return "it does not say how much noise there is in each of its test contexts"
    by_client = [notes[name] for name in ("sizes", "labels", "contexts") if name in notes]
    by_client += [names for names in (start.get("schema", {}).get("clients"), start.get("sites")) if names]
    by_client += [*notes["constant"].values(), *notes.get("noise_variance", {}).values()]
    groups = notes.get("groups")
    if groups is not None:
        by_client += [groups["majority"], *groups["counts"].values()]
    if any(len(rows) != clients for rows in by_client):
        return f"it is about {clients} clients, and not all it says of them is about as many"
    if groups is not None and not all(_are_groups(row) for rows in groups["counts"].values() for row in rows):
        return "it counts its tests in groups that are not two for each class, or has a client without any"
    first, before, needed = evaluations[0], 0, notes["constant"].keys()
    for event in evaluations:
        kinds = [kind for kind in KINDS if kind in event]
        if not kinds or kinds != [kind for kind in KINDS if kind in first]:
            return f"its evaluation of round {event['round']} is not of the models that others are of"
        if not before < event["round"]:
            return f"its evaluation of round {event['round']} comes after that of round {before}"
        before = event["round"]
        if any(not _fits(event[kind], needed, clients) for kind in kinds):
            return f"its evaluation of round {before} lacks a test context or a client"
        if groups is not None and not _groups_fit(event, kinds, groups["counts"], clients):
            return f"its evaluation of round {before} has groups that are not those of its tests"
    return ""


def _alike(scored: dict[str, Any]) -> bool:
    """Whether every test context and every client in it has the same scores."""
    each = [case["mean"].keys() for case in scored.values()]
    each += [own["scores"].keys() for case in scored.values() for own in case["clients"].values()]
    return all(names == each[0] for names in each)


def _fits(cases: dict[str, list[Any]], needed: Collection[str], clients: int) -> bool:
    return all(case in cases for case in needed) and all(len(row) == clients for row in cases.values())


def _are_groups(counts: list[Any]) -> bool:
    """Two for each class: samples with the shortcut and against it."""
    return len(counts) % 2 == 0 and all(count >= 0 for count in counts) and any(counts)


def _groups_fit(event: Event, kinds: list[str], there: dict[str, list[list[Any]]], clients: int) -> bool:
    """Hits are counted in the groups that there are, of every client, or not at all of one that was away."""
    for kind in {*kinds, *(kind for kind in KINDS if f"{kind} groups" in event)}:
        hits = event.get(f"{kind} groups", {})
        if hits.keys() != there.keys() or not _fits(hits, (), clients):
            return False
        for case, rows in there.items():
            if any(own and len(own) != len(row) for own, row in zip(hits[case], rows, strict=True)):
                return False
        if any(len({bool(hits[case][client]) for case in there}) > 1 for client in range(clients)):
            return False
    return True
