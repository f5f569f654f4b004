"""Scores of a deployment: each site computes its own and tells these numbers and counts; a server puts them together.

No prediction and no label leaves a site. Of a test case with fewer than `LEAST_ROWS` rows nothing is told, and no score
that rests on a class with fewer. The threshold of sensitivity and specificity is chosen at each site, on its own
held-out rows, and stays there.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from perinvfl.core.naming import class_names
from perinvfl.data.encoding import LEAST_ROWS
from perinvfl.results.score_names import measures_for
from perinvfl.scoring.measures import choose_threshold, scores
from perinvfl.scoring.sample_scores import FEW, Sample

BY_CLASS = ("balanced", "auroc", "average-precision", "sensitivity", "specificity")  # rest on the rows of one class
MOST_ROWS = 10**12


def site_scores(tests: Mapping[str, Sample], held_out: Sample | None) -> dict[str, Any]:
    """What one site tells of one of its models: {"chosen": whether a threshold was, "cases": {case: {"samples",
    "counts", "scores"}}}. counts: rows of each class; None where one of them is from 1 to `LEAST_ROWS` - 1."""
    threshold = choose_threshold([] if held_out is None else [held_out])
    cases = {}
    for case, sample in tests.items():
        if len(sample) < LEAST_ROWS:
            continue
        told = scores(sample, threshold.value)
        classes = sample.task != "regression"
        if classes and min(sample.counts) < LEAST_ROWS:
            told = {name: None if name in BY_CLASS else value for name, value in told.items()}
        hidden = any(0 < count < LEAST_ROWS for count in sample.counts)
        cases[case] = {"samples": len(sample), "counts": None if hidden else sample.counts, "scores": told}
    return {"chosen": threshold.chosen, "cases": cases}


def wrong_with(told: Any, cases: Sequence[str], task: str, classes: int) -> str:
    """Why this cannot be what a site computed, in words that follow on its name; empty where it can."""
    if not isinstance(told, dict) or set(told) != {"chosen", "cases"} or not isinstance(told["chosen"], bool):
        return "does not tell its scores"
    if not isinstance(told["cases"], dict) or not set(told["cases"]) <= set(cases):
        return "sends scores of test cases that do not exist"
    for case, own in told["cases"].items():
        if not isinstance(own, dict) or set(own) != {"samples", "counts", "scores"}:
            return f"does not send its scores of {case}"
        if type(own["samples"]) is not int or not LEAST_ROWS <= own["samples"] <= MOST_ROWS:
            return f"says that {case} has {own['samples']!r} rows"
        if not _sound_counts(own["counts"], own["samples"], 1 if task == "regression" else classes):
            return f"has counts of {case} that cannot be"
        values = own["scores"]
        if not isinstance(values, dict) or set(values) != set(measures_for(task)):
            return f"does not send every score of {case}"
        for name, value in values.items():
            if not _sound_score(name, value, task):
                return f"has {value!r} as the {name} of {case}"
    return ""


def _sound_counts(counts: Any, samples: int, classes: int) -> bool:
    if counts is None:
        return classes > 1
    whole = isinstance(counts, list) and len(counts) == classes and all(type(count) is int for count in counts)
    return whole and sum(counts) == samples and all(count == 0 or count >= LEAST_ROWS for count in counts)


def _sound_score(name: str, value: Any, task: str) -> bool:
    if value is None:
        return True
    if type(value) not in (int, float) or not math.isfinite(value):
        return False
    if name == "r2":
        return value <= 1
    most = math.inf if name == "mae" else 2 if name == "brier" and task == "multiclass" else 1
    return 0 <= value <= most


def join_sites(
    told: Mapping[str, Mapping[str, Any]], kind: str, round: int, task: str, classes: Sequence[str], outputs: int
) -> dict[str, Any]:
    """As `run_scores.scores_of_predictions` describes them, from what each site told of its model of one kind: without
    intervals, confusion and calibration, for which single rows would be needed. The threshold has no value: each site
    has its own."""
    names = measures_for(task)
    cases: dict[str, Any] = {}
    for case in dict.fromkeys(case for own in told.values() for case in own["cases"]):
        clients = {site: _client(own["cases"][case]) for site, own in told.items() if case in own["cases"]}
        cases[case] = {
            "mean": {name: _plain(_mean([own["scores"][name]["value"] for own in clients.values()])) for name in names},
            "clients": clients,
            "confusion": None,
            "calibration": None,
            "few": [site for site, own in clients.items() if own["few"]],
        }
    chosen = bool(told) and all(own["chosen"] for own in told.values())
    return {
        "task": task,
        "round": round,
        "models": kind,
        "classes": [] if task == "regression" else class_names(classes, max(2, outputs)),
        "threshold": {"value": None, "chosen": chosen, "counts": [], "few": False},
        "cases": cases,
    }


def _client(own: Mapping[str, Any]) -> dict[str, Any]:
    counts = own["counts"]
    return {
        "samples": own["samples"],
        "counts": counts or [],
        "few": counts is None or min(counts) < FEW,
        "scores": {name: _plain(own["scores"][name]) for name in own["scores"]},
    }


def _plain(value: float | None) -> dict[str, float | None]:
    return {"value": None if value is None else round(value, 6), "low": None, "high": None}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
