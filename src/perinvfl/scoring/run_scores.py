"""The scores of a finished run as plain data, from the predictions in its folder. Never trains."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np

from perinvfl.core.naming import class_names, client_names
from perinvfl.errors import UserError
from perinvfl.results.score_names import MEASURES, measures_for
from perinvfl.runs.predictions import VALIDATION, Predictions, read_predictions
from perinvfl.runs.records import Run
from perinvfl.scoring.measures import (
    Threshold,
    calibration_bins,
    choose_threshold,
    confusion_at,
    intervals,
    mean_scores,
    scores,
)
from perinvfl.scoring.sample_scores import Sample

MISSING = (
    "{run} holds no predictions of single samples, from which this score is computed: they stay at the sites of a "
    "deployment, are not in packed records, and were not kept by earlier versions. Delete its folder and run again."
)


def samples_of(found: Predictions, case: str, kind: str = "") -> list[Sample]:
    """One sample per client, empty for a client without any."""
    outputs = found.of[kind or found.lead][case]
    return [_sample(found, labels, own) for labels, own in zip(found.labels[case], outputs, strict=True)]


def _sample(found: Predictions, labels: Sequence[float], outputs: Sequence[float]) -> Sample:
    y = np.asarray(labels, dtype=np.float64)
    z = np.asarray(outputs, dtype=np.float64).reshape(len(y), found.outputs)
    if found.task == "regression":
        y, z = (found.label_mean + found.label_scale * values for values in (y, z))
    return Sample(found.task, y, z)


def predictions_of(run: Run) -> Predictions:
    found = read_predictions(run)
    if found is None:
        raise UserError(MISSING.format(run=run.folder))
    return found


def threshold_of(found: Predictions, kind: str = "") -> Threshold:
    """Chosen on the held-out data of all clients' training contexts, never on a test case."""
    return choose_threshold(samples_of(found, VALIDATION, kind) if VALIDATION in found.labels else [])


def run_scores(run: Run, kind: str = "", names: Sequence[str] = ()) -> dict[str, Any]:
    """Scores of a run by test case, all plain values (see `scores_of_predictions`).

    A run of leave-one-context-out (`run.folds`) has each case from the folds that hold it.
    """
    clients = client_names(run.start.get("schema", {}).get("clients", ()), run.clients)
    classes = run.start.get("schema", {}).get("classes", ())
    each = [scores_of_predictions(predictions_of(fold), clients, classes, kind, names) for fold in run.folds or [run]]
    return each[0] if len(each) == 1 else _join(each)


def scores_of_predictions(
    found: Predictions, clients: Sequence[str], classes: Sequence[str] = (), kind: str = "", names: Sequence[str] = ()
) -> dict[str, Any]:
    """{"task", "round", "models": "personal" or "global", "classes", "threshold": {"value", "chosen", "counts", "few"},
    "cases": {case: {"mean": SCORES, "clients": {client: {"samples", "counts", "few", "scores": SCORES}}, "confusion",
    "calibration", "few"}}} where SCORES is {name: {"value", "low", "high"}}: low and high are the bootstrap interval
    over samples; all None where a score is not defined. "mean" is the mean over clients; confusion and calibration put
    all clients together and are there for classes only. few: fewer than ten samples of a class at a client."""
    kind, names = kind or found.lead, names or measures_for(found.task)
    threshold = threshold_of(found, kind)
    return {
        "task": found.task,
        "round": found.round,
        "models": kind,
        "classes": [] if found.task == "regression" else class_names(classes, max(2, found.outputs)),
        "threshold": {**asdict(threshold), "counts": list(threshold.counts), "few": threshold.few},
        "cases": {
            case: _case(samples_of(found, case, kind), clients, threshold.value, names)
            for case in found.labels
            if case != VALIDATION
        },
    }


def _case(samples: list[Sample], clients: Sequence[str], threshold: float, names: Sequence[str]) -> dict[str, Any]:
    there = {client: sample for client, sample in zip(clients, samples, strict=True) if len(sample)}
    grouped = samples[0].task != "regression"
    return {
        "mean": _with_interval(list(there.values()), threshold, names),
        "clients": {
            client: {
                "samples": len(sample),
                "counts": sample.counts,
                "few": sample.few,
                "scores": _with_interval([sample], threshold, names),
            }
            for client, sample in there.items()
        },
        "confusion": confusion_at(list(there.values()), threshold) if grouped and there else None,
        "calibration": calibration_bins(list(there.values())) if grouped else None,
        "few": [client for client, sample in there.items() if sample.few],
    }


def _with_interval(samples: list[Sample], threshold: float, names: Sequence[str]) -> dict[str, dict[str, float | None]]:
    if not samples:
        return {name: {"value": None, "low": None, "high": None} for name in names}
    values = scores(samples[0], threshold, names) if len(samples) == 1 else mean_scores(samples, threshold, names)
    spans = intervals(samples, threshold, names)
    found = {}
    for name in names:
        low, high = spans[name] or (None, None)
        found[name] = {"value": values[name], "low": low, "high": high}
    return found


def _join(folds: list[dict[str, Any]]) -> dict[str, Any]:
    """A case that several folds hold has the mean of their scores, and neither confusion nor calibration: those would
    mix several models. Each fold has a threshold of its own."""
    cases: dict[str, Any] = {}
    for name in dict.fromkeys(name for fold in folds for name in fold["cases"]):
        same = [fold["cases"][name] for fold in folds if name in fold["cases"]]
        cases[name] = same[0] if len(same) == 1 else _mean_case(same)
    return {**folds[0], "threshold": None, "cases": cases}


def _mean_case(same: list[dict[str, Any]]) -> dict[str, Any]:
    clients = dict.fromkeys(client for case in same for client in case["clients"])
    by_client = {}
    for client in clients:
        parts = [case["clients"][client] for case in same if client in case["clients"]]
        by_client[client] = {
            "samples": min(part["samples"] for part in parts),
            "counts": [min(counts) for counts in zip(*(part["counts"] for part in parts), strict=True)],
            "few": any(part["few"] for part in parts),
            "scores": mean_of([part["scores"] for part in parts]),
        }
    few = [client for client, found in by_client.items() if found["few"]]
    mean = mean_of([case["mean"] for case in same])
    return {"mean": mean, "clients": by_client, "confusion": None, "calibration": None, "few": few}


def mean_of(several: Sequence[dict[str, dict[str, float | None]]]) -> dict[str, dict[str, float | None]]:
    """Values and ends of intervals, each the mean over folds or seeds."""
    found: dict[str, dict[str, float | None]] = {}
    for name in several[0]:
        found[name] = {}
        for part in ("value", "low", "high"):
            known = [value for each in several if (value := each[name][part]) is not None]
            found[name][part] = fmean(known) if known else None
    return found


def check_measure(name: str, task: str) -> None:
    """Whether a task has this score."""
    if name not in measures_for(task):
        known = ", ".join(measures_for(task))
        what = "of numbers" if MEASURES[name].regression else "of classes"
        raise UserError(f"--score {name} is a score {what}, and this is a {task} task: it has {known}.")
