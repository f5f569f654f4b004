"""Runs of a leave-one-context-out read as one: each held-out context from the run that never saw it."""

import dataclasses
import json
from typing import Any

from perinvfl.runs.records import Cases, Event, Run, lead_scores, mean_known


def join_folds(runs: list[Run]) -> list[Run]:
    """The runs, with those that differ in the context held out, and in nothing else, joined into one."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        data = run.asked["data"]
        alone = run.id if not data.get("leave_one_context_out") else ""
        asked = {**run.asked, "data": {key: data[key] for key in data if key != "test_contexts"}}
        groups.setdefault(json.dumps([alone, asked], sort_keys=True), []).append(run)
    return [same[0] if len(same) == 1 else _join(same) for same in groups.values()]


def _join(folds: list[Run]) -> Run:
    """Broken where any is, unfinished where any is; rounds that every fold has evaluated."""
    start = folds[0].with_facts(dataclasses.replace(folds[0].facts, fold="")).start
    spectrum = [case for run in folds for case in run.spectrum]
    clients = max(run.clients for run in folds)
    cases = _cases([run.notes["constant"] for run in folds], clients)
    constant = {case: cases[case] for case in [*spectrum, *(case for case in cases if case not in spectrum)]}
    events: list[Event] = [{**start, "spectrum": spectrum, "notes": {**start["notes"], "constant": constant}}]
    by_round = [{event["round"]: event for event in run.evaluations} for run in folds]
    for round in sorted(set.intersection(*map(set, by_round))):
        same = [rounds[round] for rounds in by_round]
        kinds = [kind for kind in ("personal", "global") if kind in same[0]]
        scores: dict[str, Any] = {kind: _cases([event[kind] for event in same], clients) for kind in kinds}
        events.append({**same[0], **scores, "seconds": sum(event["seconds"] for event in same)})
    broken = next((run.broken for run in folds if run.broken is not None), None)
    if broken is not None:
        events.append(broken)
    elif all(run.finished for run in folds):
        events.append(folds[-1].events[-1])
    return Run(_hardest(folds).folder, events, tuple(folds))


def _hardest(folds: list[Run]) -> Run:
    """The fold that does worst in the context it never saw: the one to look into."""
    if not all(run.evaluations for run in folds):
        return folds[0]

    def goodness(run: Run) -> float:
        last = run.evaluations[-1]
        score = mean_known(lead_scores(last)[run.spectrum[0]])
        return -score if run.task == "regression" else score

    return min(folds, key=goodness)


def _cases(folds: list[Cases], clients: int) -> Cases:
    """Scores by case and client; a case that several folds have is the mean over them."""
    names = dict.fromkeys(name for fold in folds for name in fold)
    return {
        name: [_mean([fold[name][client] for fold in folds if name in fold]) for client in range(clients)]
        for name in names
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean_known(known) if known else None
