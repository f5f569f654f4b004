"""Intervals over samples, by test context and client, from the predictions that runs kept."""

import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from perinvfl.errors import UserError
from perinvfl.results.folds import clients_of
from perinvfl.runs.records import Run

if TYPE_CHECKING:
    from perinvfl.scoring.sample_scores import Sample

Span = list[float | None]
Spans = dict[str, dict[str, Any]]


def score_spans(runs: list[Run]) -> Spans:
    """Case -> {"mean": [low, high], "clients": {name: [low, high]}}, the mean over seeds of each end.

    Of accuracy in percent; of a regression the mean squared error in the units of training, as records have it. Empty
    where runs kept no predictions.
    """
    try:
        if runs[0].task == "regression":
            return _joined([_squared_errors(fold) for run in runs for fold in run.folds or [run]])
        return _joined([_accuracies(run) for run in runs])
    except UserError:
        return {}


def _accuracies(run: Run) -> Spans:
    from perinvfl.scoring.run_scores import run_scores  # numpy

    def ends(scores: dict[str, dict[str, float | None]]) -> Span:
        return [None if end is None else 100 * end for end in (scores["accuracy"]["low"], scores["accuracy"]["high"])]

    return {
        case: {
            "mean": ends(found["mean"]),
            "clients": {name: ends(own["scores"]) for name, own in found["clients"].items()},
        }
        for case, found in run_scores(run, names=("accuracy",))["cases"].items()
    }


def _squared_errors(run: Run) -> Spans:
    from perinvfl.runs.predictions import VALIDATION
    from perinvfl.scoring.run_scores import predictions_of, samples_of

    found, spans = predictions_of(run), {}
    for case in found.labels:
        if case == VALIDATION:
            continue
        errors = [_errors(sample, found.label_scale) for sample in samples_of(found, case)]
        by_name = {name: own for name, own in zip(clients_of(run), errors, strict=True) if len(own)}
        spans[case] = {"mean": _ends(errors), "clients": {name: _ends([own]) for name, own in by_name.items()}}
    return spans


def _errors(sample: "Sample", scale: float) -> "Sample":
    """Samples whose mean absolute error is the mean squared error of these."""
    from perinvfl.scoring.sample_scores import Sample

    squares = ((sample.labels - sample.outputs[:, 0]) / scale) ** 2
    return Sample(sample.task, squares, 0 * sample.outputs)


def _ends(errors: "list[Sample]") -> Span:
    from perinvfl.scoring.measures import intervals

    return list(intervals(errors, names=["mae"])["mae"] or (None, None))


def _joined(each: list[Spans]) -> Spans:
    """The mean of each end over seeds and folds, of those that have it."""
    cases = dict.fromkeys(case for spans in each for case in spans)
    joined = {}
    for case in cases:
        same = [spans[case] for spans in each if case in spans]
        names = dict.fromkeys(name for spans in same for name in spans["clients"])
        clients = {name: _mean(spans["clients"].get(name, [None, None]) for spans in same) for name in names}
        joined[case] = {"mean": _mean(spans["mean"] for spans in same), "clients": clients}
    return joined


def _mean(spans: Iterable[Span]) -> Span:
    ends = [[end for end in same if end is not None] for same in zip(*spans, strict=True)]
    return [round(statistics.fmean(known), 5) if known else None for known in ends]
