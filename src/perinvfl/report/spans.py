"""Intervals of accuracy over samples, by test context and client, from the predictions that runs kept."""

from typing import Any

from perinvfl.errors import UserError
from perinvfl.runs.records import Run

Span = list[float | None]


def accuracy_spans(runs: list[Run]) -> dict[str, dict[str, Any]]:
    """Case -> {"mean": [low, high], "clients": {name: [low, high]}} in percent, the mean over seeds of each end.

    Empty for a regression, and where runs kept no predictions.
    """
    if runs[0].task == "regression":
        return {}
    from perinvfl.scoring.run_scores import mean_of, run_scores  # numpy

    try:
        each = [run_scores(run, names=("accuracy",)) for run in runs]
    except UserError:
        return {}
    found = {}
    for case in each[0]["cases"]:
        same = [scores["cases"][case] for scores in each]
        clients = {
            name: _ends(mean_of([one["clients"][name]["scores"] for one in same if name in one["clients"]]))
            for name in same[0]["clients"]
        }
        found[case] = {"mean": _ends(mean_of([one["mean"] for one in same])), "clients": clients}
    return found


def _ends(scores: dict[str, dict[str, float | None]]) -> Span:
    return [
        None if end is None else round(100 * end, 5) for end in (scores["accuracy"]["low"], scores["accuracy"]["high"])
    ]
