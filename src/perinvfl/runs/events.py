"""The events of a record, one builder each: whoever trains, the lines look alike.

A record is a start, what was prepared, evaluations, and an end or why there is none. Its start says which format it
has; `perinvfl.runs.records` reads all formats there were.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perinvfl.runs.trial import Trial

Event = dict[str, Any]


def start_event(
    trial: "Trial",
    *,
    asked: dict[str, Any],
    id: str,
    experiment: str,
    order: int,
    spectrum: Sequence[str],
    task: str,
    clients: int,
    notes: Mapping[str, object],
    environment: Mapping[str, str | int],
    **further: Any,  # what only some drivers know: schema, parameters, sites, ...
) -> Event:
    """What was asked, of what, by whom."""
    return {
        "event": "start",
        "id": id,
        "experiment": experiment,
        "order": order,
        **trial.facts.as_fields(),
        "asked": asked,
        "spectrum": list(spectrum),
        "task": task,
        "clients": clients,
        "notes": dict(notes),
        "environment": dict(environment),
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **further,
    }


def prepared_event(found: dict[str, Any], seconds: float) -> Event:
    """What the phases in front of the last one found."""
    return {"event": "prepared", "found": found, "seconds": round(seconds, 3)}


def evaluation_event(
    rounds_done: int,
    seconds: float,
    risks: Sequence[float],
    scores: Mapping[str, Mapping[str, Sequence[Any]]],  # by kind of model and test case, one per client
    **further: Any,
) -> Event:
    return {
        "event": "evaluation",
        "round": rounds_done,
        "seconds": round(seconds, 3),
        "risks": rounded(risks),
        **{kind: {case: rounded(row) for case, row in cases.items()} for kind, cases in scores.items()},
        **further,
    }


def scores_event(rounds_done: int, models: Mapping[str, Any]) -> Event:
    """Scores by kind of model, where the predictions behind them are not kept: of deployments and published runs."""
    return {"event": "scores", "round": rounds_done, "models": dict(models)}


def broken_event(round: int, why: str) -> Event:
    return {"event": "broken", "round": round, "why": why}


def pruned_event(round: int, why: str) -> Event:
    """A search has given the run up: by what was measured so far, others do better."""
    return {"event": "pruned", "round": round, "why": why}


def end_event(rounds_done: int, seconds: float, gpu_bytes: int = 0, **further: Any) -> Event:
    return {"event": "end", "round": rounds_done, "seconds": round(seconds, 3), "gpu_bytes": gpu_bytes, **further}


def left_out_event(round: int, site: str, why: str, phase: str = "main") -> Event:
    return {"event": "left out", **_when(round, phase), "site": site, "why": why}


def far_event(round: int, site: str, how: str, phase: str = "main") -> Event:
    """An update that is far from the others'."""
    return {"event": "far", **_when(round, phase), "site": site, "how": how}


def partial_event(round: int, used: Sequence[str], phase: str = "main") -> Event:
    return {"event": "partial", **_when(round, phase), "used": list(used)}


def undone_event(round: int, why: str, phase: str = "main") -> Event:
    return {"event": "undone", **_when(round, phase), "why": why}


def _when(round: int, phase: str) -> dict[str, Any]:
    """Rounds of the last phase are the run's rounds; those before it are counted apart."""
    return {"round": round} if phase == "main" else {"phase": phase, "phase_round": round}


def rounded(row: Sequence[Any]) -> list[Any]:
    """Numbers to six digits; None where there is none."""
    return [
        rounded(value) if isinstance(value, list | tuple) else round(value, 6) if math.isfinite(value) else None
        for value in row
    ]
