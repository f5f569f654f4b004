"""Runs that leave one context or one hospital out in turn, read as one: each from the run that never saw it.

Folds may have different clients, so their scores are put together by the names of clients.
"""

import dataclasses
import json
import math
from typing import Any

from perinvfl.core.naming import client_names
from perinvfl.runs.records import Cases, Event, Run, any_known, lead_scores, mean_known


def join_folds(runs: list[Run]) -> list[Run]:
    """The runs, with those that differ in what is held out, and in nothing else, joined into one."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        data, key = run.asked["data"], _held_out_by(run)
        asked = {**run.asked, "data": {name: data[name] for name in data if name != key}}
        groups.setdefault(json.dumps([key or run.id, asked], sort_keys=True), []).append(run)
    return [same[0] if len(same) == 1 else _join(same) for same in groups.values()]


def _held_out_by(run: Run) -> str:
    """The setting that names what a fold holds out; "" of a run that is no fold."""
    data = run.asked["data"]
    if data.get("leave_one_context_out"):
        return "test_contexts"
    return "leave_out" if isinstance(data.get("leave_out"), str) and data["leave_out"] else ""


def _join(folds: list[Run]) -> Run:
    """Broken where any is, unfinished where any is; rounds that every fold has evaluated."""
    start = folds[0].with_facts(dataclasses.replace(folds[0].facts, fold="")).start
    spectrum = [case for run in folds for case in run.spectrum]
    of_folds = [clients_of(run) for run in folds]
    clients = _all_clients(of_folds)

    def cases(scores: list[Cases]) -> Cases:
        return _cases(scores, of_folds, clients)

    known = cases([run.notes["constant"] for run in folds])
    constant = {case: known[case] for case in [*spectrum, *(case for case in known if case not in spectrum)]}
    schema = {"schema": {**start["schema"], "clients": clients}} if "schema" in start else {}
    notes = {**start["notes"], **_notes_by_client(folds, of_folds, clients), "constant": constant}
    events: list[Event] = [
        {**start, **schema, "clients": len(clients), "spectrum": spectrum, "notes": notes},
    ]
    by_round = [{event["round"]: event for event in run.evaluations} for run in folds]
    for round in sorted(set.intersection(*map(set, by_round))):
        same = [rounds[round] for rounds in by_round]
        kinds = [kind for kind in ("personal", "global") if kind in same[0]]
        scores: dict[str, Any] = {kind: cases([event[kind] for event in same]) for kind in kinds}
        events.append({**same[0], **scores, "seconds": sum(event["seconds"] for event in same)})
    broken = next((run.broken for run in folds if run.broken is not None), None)
    if broken is not None:
        events.append(broken)
    elif all(run.finished for run in folds):
        events.append(folds[-1].events[-1])
    return Run(_hardest(folds).folder, events, tuple(folds))


def clients_of(run: Run) -> list[str]:
    return client_names(run.start.get("schema", {}).get("clients", ()), run.clients)


def _all_clients(of_folds: list[list[str]]) -> list[str]:
    """Of all folds, in an order that each fold keeps.

    >>> _all_clients([["b", "c"], ["a", "c"], ["a", "b"]])
    ['a', 'b', 'c']
    """
    left = dict.fromkeys(name for fold in of_folds for name in fold)
    order = []
    while left:
        first = next(
            (name for name in left if not any(name in f and set(f[: f.index(name)]) & set(left) for f in of_folds)),
            next(iter(left)),  # folds that disagree
        )
        order.append(first)
        del left[first]
    return order


def _notes_by_client(folds: list[Run], of_folds: list[list[str]], clients: list[str]) -> dict[str, Any]:
    """Of the notes with one entry per client, each client's from the first fold that has it."""
    found = {}
    for key in ("sizes", "labels", "contexts"):
        if all(key in run.notes for run in folds):
            known: dict[str, Any] = {}
            for run, names in zip(folds, of_folds, strict=True):
                known = dict(zip(names, run.notes[key], strict=True)) | known
            found[key] = [known[name] for name in clients]
    return found


def _hardest(folds: list[Run]) -> Run:
    """The fold that does worst in the context it never saw: the one to look into."""
    if not all(run.evaluations for run in folds):
        return folds[0]

    def goodness(run: Run) -> float:
        last = run.evaluations[-1]
        scores = lead_scores(last)[run.spectrum[0]]
        if not any_known(scores):
            return math.inf  # nothing is known of it
        return -mean_known(scores) if run.task == "regression" else mean_known(scores)

    return min(folds, key=goodness)


def _cases(scores: list[Cases], of_folds: list[list[str]], clients: list[str]) -> Cases:
    """Scores by case and client; a case that several folds have is the mean over them."""
    found: Cases = {}
    for case in dict.fromkeys(case for fold in scores for case in fold):
        by_client: dict[str, list[float | None]] = {name: [] for name in clients}
        for fold, names in zip(scores, of_folds, strict=True):
            for name, score in zip(names, fold.get(case, ()), strict=case in fold):
                by_client[name].append(score)
        found[case] = [_mean(by_client[name]) for name in clients]
    return found


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean_known(known) if known else None
