"""The scores of a finished run as plain data, from the predictions in its folder. Never trains."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

import numpy as np

from perinvfl.core.naming import class_names
from perinvfl.errors import UserError
from perinvfl.results.folds import clients_of
from perinvfl.results.score_names import MEASURES, measures_for
from perinvfl.runs.events import scores_event
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
from perinvfl.scoring.sample_scores import Sample, sample_of

MISSING = (
    "{run} holds neither scores nor predictions of single samples, from which they are computed: earlier versions kept "
    "none. Delete its folder and run again."
)


def samples_of(found: Predictions, case: str, kind: str = "") -> list[Sample]:
    """One sample per client, empty for a client without any."""
    outputs = found.of[kind or found.lead][case]
    return [_sample(found, labels, own) for labels, own in zip(found.labels[case], outputs, strict=True)]


def _sample(found: Predictions, labels: Sequence[float], outputs: Sequence[float]) -> Sample:
    z = np.asarray(outputs).reshape(len(labels), found.outputs)
    return sample_of(found.task, np.asarray(labels), z, found.label_mean, found.label_scale)


def predictions_of(run: Run) -> Predictions:
    found = read_predictions(run)
    if found is None:
        raise UserError(MISSING.format(run=run.folder))
    return found


def threshold_of(found: Predictions, kind: str = "") -> Threshold:
    """Chosen on the held-out data of all clients' training contexts, never on a test case."""
    return choose_threshold(samples_of(found, VALIDATION, kind) if VALIDATION in found.of[kind or found.lead] else [])


def run_scores(run: Run, kind: str = "", names: Sequence[str] = ()) -> dict[str, Any]:
    """Scores of a run by test case, all plain values (see `scores_of_predictions`).

    A run that stands for several (`run.folds`) has each case from the folds that hold it.
    """
    each = [_scores_of_one(fold, kind, names) for fold in run.folds or [run]]
    return each[0] if len(each) == 1 else _join(each)


def _scores_of_one(run: Run, kind: str, names: Sequence[str]) -> dict[str, Any]:
    """From the predictions in its folder, or as the record has them."""
    found = read_predictions(run)
    if found is not None:
        return scores_of_predictions(
            found, clients_of(run), run.start.get("schema", {}).get("classes", ()), kind, names
        )
    if run.scores is None:
        raise UserError(MISSING.format(run=run.folder))
    stored = run.scores[kind or next(iter(run.scores))]
    lacking = [name for name in names for case in stored["cases"].values() if name not in case["mean"]]
    if lacking:
        raise UserError(f"{run.folder} holds scores, and {lacking[0]} is not among them.")
    return _only(stored, names)


def _only(stored: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Stored scores, of these names where any are given."""

    def chosen(of: dict[str, Any]) -> dict[str, Any]:
        return {name: of[name] for name in names or of}

    cases = {}
    for case, found in stored["cases"].items():
        clients = {name: {**own, "scores": chosen(own["scores"])} for name, own in found["clients"].items()}
        cases[case] = {**found, "mean": chosen(found["mean"]), "clients": clients}
    return {**stored, "cases": cases}


def with_scores(run: Run) -> Run:
    """The run with its scores on record, to be packed without its predictions."""
    found = predictions_of(run)
    models = {kind: _rounded(_scores_of_one(run, kind, ())) for kind in found.of}
    *before, last = run.events
    return replace(run, events=[*before, scores_event(found.round, models), last])


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return round(value, 5) if isinstance(value, float) else value


def scores_of_predictions(
    found: Predictions, clients: Sequence[str], classes: Sequence[str] = (), kind: str = "", names: Sequence[str] = ()
) -> dict[str, Any]:
    """{"task", "round", "models": "personal" or "global", "classes", "threshold": {"value", "chosen", "counts", "few"},
    "cases": {case: {"mean": SCORES, "clients": {client: {"samples", "counts", "few", "scores": SCORES}}, "confusion",
    "calibration", "few"}}} where SCORES is {name: {"value", "low", "high"}}: low and high are the bootstrap interval
    over samples, the same ones for all clients where they share them; all None where a score is not defined. "mean" is
    the mean over clients; confusion and calibration put all clients together and are there for classes only. few: fewer
    than ten samples of a class at a client."""
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
    spans = intervals(samples, threshold, names, together=_same_rows(samples))
    found = {}
    for name in names:
        low, high = spans[name] or (None, None)
        found[name] = {"value": values[name], "low": low, "high": high}
    return found


def _same_rows(samples: list[Sample]) -> bool:
    """Whether all clients are tested on the same rows, such as those of a hospital that took no part."""
    return len(samples) > 1 and all(np.array_equal(samples[0].labels, sample.labels) for sample in samples[1:])


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
