"""What was understood of own data and what is wrong with them: the answer of `perinvfl data check`, as plain values."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.config import suggest
from perinvfl.core.naming import name_of
from perinvfl.data.own.files import FileSettings, exclude, federation_of, read_found
from perinvfl.data.own.fitting import encoded_rows
from perinvfl.data.own.rows import BadData, Fault, Rows, decide
from perinvfl.errors import UserError

MOST_SHOWN = 8  # columns whose relation to the label is shown


def survey(settings: FileSettings) -> dict[str, Any]:
    """Everything about a file that can be said; `faults` is empty where the data can be used."""
    report: dict[str, Any] = {"path": settings.path, "checksum": settings.checksum}
    try:
        found = read_found(settings)
    except BadData as error:  # the columns themselves are wrong, so there are no rows to speak of
        return {**report, "faults": _faults(list(error.faults)), "warnings": []}
    rows, faults = decide(found, settings.task, tuple(map(name_of, settings.classes)), settings.label)
    faults = [*found.faults, *faults]
    report |= {"kind": rows.kind, "rows": len(found.client), "faults": _faults(faults)}
    if len(rows.y) == 0:
        return {**report, "warnings": []}
    try:
        rows = exclude(rows, tuple(map(name_of, settings.exclude_clients)))
        unknown = [name for name in settings.held_out if name not in rows.contexts]
        if unknown:
            near = suggest(unknown[0], list(rows.contexts))
            raise UserError(f'test_contexts names "{unknown[0]}", no context of these data{near}')
    except UserError as error:
        report["faults"] += _faults([Fault("", "", str(error).rstrip("."))])
    report |= describe(rows, settings)
    if not report["faults"]:
        try:
            report["statistics"] = _statistics(rows, settings)
        except UserError as error:
            report["faults"] = _faults([Fault("", "", str(error).rstrip("."))])
    return report


def _statistics(rows: Rows, settings: FileSettings) -> dict[str, Any]:
    """What features are standardised with (seed 0): sites that cannot see each other's rows can use the same.

    Refuses what a run would refuse.
    """
    federations = [federation_of(rows, fold, seed=0) for fold in settings.folds()]
    for federation in federations:
        federation.check_tests()
    if len(federations) > 1:
        return {}  # differs from run to run
    schema = federations[0].schema
    statistics = {"mean": list(schema.mean), "scale": list(schema.scale)}
    return statistics | (
        {"label_mean": schema.label_mean, "label_scale": schema.label_scale} if not rows.classes else {}
    )


def describe(rows: Rows, settings: FileSettings) -> dict[str, Any]:
    held = [name for name in rows.contexts if name in settings.held_out]
    seen = ~torch.tensor([name in held for name in rows.contexts])[rows.context]  # [n]
    description: dict[str, Any] = {
        "task": rows.task,
        "shape": list(rows.x.shape[1:]),
        "features": list(rows.features),
        "label": _label(rows),
        "clients": [_client(rows, number, name) for number, name in enumerate(rows.clients)],
        "contexts": [
            {
                "name": name,
                "rows": int((rows.context == number).sum()),
                "held_out": name in held,
                **_label(rows.take(rows.context == number)),
            }
            for number, name in enumerate(rows.contexts)
        ],
        "from_context": from_context(rows),
        "relations": _relations(encoded_rows(rows)) if rows.x.ndim == 2 and len(rows.contexts) > 1 else [],
    }
    description["warnings"] = _warnings(rows, settings, seen, held)
    return description


def from_context(rows: Rows) -> dict[str, float]:
    """How well the label is predicted by the context alone, beside a prediction that knows nothing.

    Classes: the share of rows whose label is the most frequent one of their context, and of all. A quantity: the share
    of its variance that the means of the contexts explain.
    """
    groups = [rows.y[rows.context == number] for number in rows.context.unique().tolist()]
    if rows.task == "regression":
        total = float(rows.y.var(correction=0)) * len(rows.y)
        within = sum(float(group.var(correction=0)) * len(group) for group in groups)
        return {"explained": 1 - within / total if total else 0.0}
    right = sum(int((group == group.mode().values).sum()) for group in groups)
    return {"accuracy": right / len(rows.y), "constant": float((rows.y == rows.y.mode().values).double().mean())}


def _client(rows: Rows, number: int, name: str) -> dict[str, Any]:
    mine = rows.take(rows.client == number)
    contexts = {
        context: int((mine.context == place).sum())
        for place, context in enumerate(rows.contexts)
        if bool((mine.context == place).any())
    }
    return {"name": name, "rows": len(mine.y), "contexts": contexts, **_label(mine), "from_context": from_context(mine)}


def _label(rows: Rows) -> dict[str, Any]:
    if rows.task != "regression":
        return {"classes": {name: int((rows.y == number).sum()) for number, name in enumerate(rows.classes)}}
    y = rows.y
    return {
        "mean": float(y.mean()),
        "deviation": float(y.std(correction=0)),
        "least": float(y.min()),
        "most": float(y.max()),
    }


def _relations(rows: Rows) -> list[dict[str, Any]]:
    """How each column goes with the label, by context (correlation; of classes the strongest one's), the most
    changing first: what changes is what a model should not lean on."""
    if rows.task == "multiclass":
        targets = [(rows.y == number).double() for number in range(len(rows.classes))]
    else:
        targets = [rows.y]
    found: list[dict[str, Any]] = []
    for column, name in enumerate(rows.features):
        x = rows.x[:, column].double()
        whole = [_correlation(x, target) for target in targets]
        strongest = max(range(len(targets)), key=lambda t: abs(whole[t]))
        target = targets[strongest]
        by_context = {
            context: _correlation(x[rows.context == number], target[rows.context == number])
            for number, context in enumerate(rows.contexts)
        }
        change = max(by_context.values()) - min(by_context.values())
        of_class = {"class": rows.classes[strongest]} if len(targets) > 1 else {}
        found.append({"column": name, **of_class, "by_context": by_context, "change": change})
    return sorted(found, key=lambda relation: -relation["change"])[:MOST_SHOWN]


def _correlation(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(), y - y.mean()
    size = float(x.norm() * y.norm())
    return float(x @ y) / size if size > 1e-12 and math.isfinite(size) else 0.0


def _warnings(rows: Rows, settings: FileSettings, seen: Tensor, held: list[str]) -> list[str]:
    """What can be trained on but should be known."""
    warnings = []
    if len(rows.clients) == 1:
        warnings.append("there is one client only, so there is nobody to learn from")
    if not held and not settings.leave_one_context_out:
        ask = (
            "name some in test_contexts, or ask for leave_one_context_out" if len(rows.contexts) > 1 else "there is one"
        )
        warnings.append(f"no context is held out, so the only test is in distribution: {ask}")
    for number, name in enumerate(rows.clients):
        mine = rows.client == number
        trained = rows.context[mine & seen].unique().numel()
        if not bool((mine & seen).any()):
            continue  # nothing to train on, which is a fault
        for context in held:
            if not bool((mine & (rows.context == rows.contexts.index(context))).any()):
                warnings.append(f'client "{name}" has no row in the held-out context {context}: it gets no score there')
        if trained == 1 and not settings.leave_one_context_out:
            warnings.append(f'client "{name}" has one training context, so nothing of its own to compare it with')
        for place, label in enumerate(rows.classes):
            if not bool((rows.y[mine & seen] == place).any()):
                warnings.append(f'client "{name}" has no training row of class "{label}"')
    for place, label in enumerate(rows.classes):
        if not bool((rows.y[seen] == place).any()):
            warnings.append(f'class "{label}" is in no training row, only in held-out contexts')
    if rows.classes:
        counts = [int((rows.y == place).sum()) for place in range(len(rows.classes))]
        if max(counts) > 4 * max(min(counts), 1):
            warnings.append(
                f'the classes are uneven: {max(counts)} rows of "{rows.classes[counts.index(max(counts))]}", '
                f'{min(counts)} of "{rows.classes[counts.index(min(counts))]}"'
            )
    if rows.x.ndim == 2 and bool(seen.any()):
        x = rows.x[seen].double()
        spread = x.nan_to_num(-math.inf).amax(0) - x.nan_to_num(math.inf).amin(0)  # of the values that are there
        warnings += [
            f'column "{rows.features[i]}" is the same in every training row' for i in (spread == 0).nonzero().flatten()
        ]
    return warnings


def _faults(faults: list[Fault]) -> list[dict[str, str]]:
    return [{"where": fault.where, "column": fault.column, "what": fault.what, "told": str(fault)} for fault in faults]


def headline(report: dict[str, Any]) -> str:
    """One line about the file."""
    if "task" not in report:
        return f"{Path(report['path']).name}: cannot be used"
    inputs = f"{report['shape'][0]} features" if report["features"] else "x".join(map(str, report["shape"])) + " inputs"
    return (
        f"{Path(report['path']).name}: {report['kind']}, {report['rows']} rows, {inputs}, "
        f"{len(report['clients'])} clients, {len(report['contexts'])} contexts, {report['task']}"
    )
