"""What was understood of own data and what is wrong with them: the answer of `perinvfl data check`, as plain values."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.config import suggest
from perinvfl.core.naming import counted, listed, name_of
from perinvfl.data.own import readers
from perinvfl.data.own.dealing import dealt
from perinvfl.data.own.fault_groups import group_faults
from perinvfl.data.own.files import FileSettings, exclude, federation_of, read_found
from perinvfl.data.own.fitting import encoded_rows
from perinvfl.data.own.known_from import from_client, from_context, told_by_client
from perinvfl.data.own.notes import suspicions
from perinvfl.data.own.remarks import Remark, column_remarks
from perinvfl.data.own.rows import BadData, Fault, Found, Rows, decide
from perinvfl.data.own.stand_ins import without_stand_ins
from perinvfl.errors import UserError

GAPS = (
    "values are missing, as counted below: a number becomes the median of the training rows, and a further column "
    "says where; a missing category becomes a level of its own"
)
MOST_SHOWN = 8  # columns whose relation to the label is shown


def survey(settings: FileSettings) -> dict[str, Any]:
    """Everything about a file that can be said; `faults` is empty where the data can be used."""
    report: dict[str, Any] = {"path": settings.path, "checksum": settings.checksum}
    try:
        found = read_found(settings)
    except BadData as error:  # the columns themselves are wrong, so there are no rows to speak of
        return {**report, **_faults(list(error.faults), 0), "warnings": [], "remarks": []}
    rows, faults = decide(found, settings.task, tuple(map(name_of, settings.classes)), settings.label)
    faults = [*found.faults, *faults]
    report |= {"kind": rows.kind, "rows": len(found.client), "used": len(rows.y), "reading": list(found.notes)}
    remarks = _remarks(found, rows, settings)
    gaps = {remark.column: str(remark) for remark in remarks if remark.kind == "missing"}
    if settings.missing == "refuse":
        remarks = [remark for remark in remarks if remark.kind != "missing"]
    useless = {fault.column for fault in faults if not fault.where}  # as a whole: enough is said about it
    remarks = [remark for remark in remarks if remark.column not in useless]
    report["remarks"] = [{**vars(remark), "message": str(remark)} for remark in remarks]
    if len(rows.y) == 0:
        return {**report, **_faults(faults, len(found.client), gaps), "warnings": []}
    try:
        rows = exclude(rows, tuple(map(name_of, settings.exclude_clients)))
        report["look_at"] = suspicions(rows, settings)
        rows = dealt(rows, settings, seed=0)
        unknown = [name for name in settings.held_out if name not in rows.contexts]
        if unknown:
            near = suggest(unknown[0], list(rows.contexts))
            raise UserError(f'test_contexts names "{unknown[0]}", no context of these data{near}')
    except UserError as error:
        faults.append(Fault("", "", str(error).rstrip(".")))
    report |= describe(rows, settings)
    if any(remark.kind == "missing" for remark in remarks):
        report["warnings"].append(GAPS)
    if not faults:
        try:
            report["statistics"] = _statistics(rows, settings)
        except UserError as error:
            faults = [Fault("", "", str(error).rstrip("."))]
    return {**report, **_faults(faults, len(found.client), gaps)}


def _remarks(found: Found, rows: Rows, settings: FileSettings) -> list[Remark]:
    """About the columns of a table as they stand in the file; of arrays, as they were read."""
    if not found.features:
        return []
    path = Path(settings.path)
    if path.suffix.lower() in readers.TABLES:
        columns = readers.whole_table(path).columns
        stand_ins = settings.missing_values
        features = {name: without_stand_ins(columns[name], stand_ins.get(name, ())) for name in found.features}
    else:
        features = {name: found.x[:, place] for place, name in enumerate(found.features)}
    raw = found.labels.tolist() if isinstance(found.labels, Tensor) else found.labels
    labels = [] if rows.task == "regression" else [name_of(label) for label in raw]
    return column_remarks(features, found.client, labels, settings.categories)


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
        "from_client": from_client(rows),
        "relations": _relations(encoded_rows(rows)) if rows.x.ndim == 2 and len(rows.contexts) > 1 else [],
    }
    description["warnings"] = _warnings(rows, settings, seen, held)
    return description


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
    """What can be trained on but should be known: about the whole, the label, then clients and columns."""
    warnings = []
    if len(rows.clients) == 1:
        warnings.append("there is one client only, so there is nobody to learn from")
    if not held and not settings.leave_one_context_out:
        ask = (
            "name some in test_contexts, or ask for leave_one_context_out" if len(rows.contexts) > 1 else "there is one"
        )
        warnings.append(f"no context is held out, so the only test is in distribution: {ask}")
    warnings += told_by_client(rows)
    warnings += [
        f'class "{label}" is in no training row, only in held-out contexts'
        for place, label in enumerate(rows.classes)
        if not bool((rows.y[seen] == place).any())
    ]
    if rows.classes:
        counts = [int((rows.y == place).sum()) for place in range(len(rows.classes))]
        if max(counts) > 4 * max(min(counts), 1):
            warnings.append(
                f'the classes are uneven: {max(counts)} rows of "{rows.classes[counts.index(max(counts))]}", '
                f'{min(counts)} of "{rows.classes[counts.index(min(counts))]}"'
            )
    warnings += _client_warnings(rows, settings, seen, held)
    if rows.x.ndim == 2 and bool(seen.any()):
        x = rows.x[seen].double()
        spread = x.nan_to_num(-math.inf).amax(0) - x.nan_to_num(math.inf).amin(0)  # of the values that are there
        warnings += [
            f'column "{rows.features[i]}" is the same in every training row' for i in (spread == 0).nonzero().flatten()
        ]
    return warnings


def _client_warnings(rows: Rows, settings: FileSettings, seen: Tensor, held: list[str]) -> list[str]:
    """One sentence for all clients of which the same is to be said."""
    found: dict[tuple[str, str], list[str]] = {}
    for number, name in enumerate(rows.clients):
        mine = rows.client == number
        if not bool((mine & seen).any()):
            continue  # nothing to train on, which is a fault
        for context in held:
            if not bool((mine & (rows.context == rows.contexts.index(context))).any()):
                ends = (
                    f"no row in the held-out context {context}: it gets",
                    f"no row in the held-out context {context}: they get",
                )
                found.setdefault((f"{ends[0]} no score there", f"{ends[1]} no score there"), []).append(name)
        one = int(rows.context[mine & seen].unique().numel()) == 1
        if one and len(rows.contexts) > 1 and not settings.leave_one_context_out:
            ends = (
                "one training context, so nothing of its own to compare it with",
                "one training context each, so nothing of their own to compare it with",
            )
            found.setdefault(ends, []).append(name)
        for place, label in enumerate(rows.classes):
            if not bool((rows.y[mine & seen] == place).any()):
                found.setdefault((f'no training row of class "{label}"',) * 2, []).append(name)
    return [
        f'client "{names[0]}" has {single}' if len(names) == 1 else f"clients {quoted(names)} have {several}"
        for (single, several), names in found.items()
    ]


def quoted(names: Sequence[str]) -> str:
    return listed([f'"{name}"' for name in names])


def _faults(faults: list[Fault], rows: int, gaps: dict[str, str] | None = None) -> dict[str, Any]:
    """Every one, and grouped for a reader. gaps: how many values of a column are missing, in words; a reader of files
    stops at the first fault of a row, and so finds fewer."""
    single = [{"where": f.where, "column": f.column, "what": f.what, "message": str(f)} for f in faults]
    groups = [
        {**vars(group), "message": f"{gaps[group.column]} ({', '.join(group.first)}, ...)"}
        if gaps and group.what == "missing" and group.count > 1 and group.column in gaps
        else vars(group)
        for group in group_faults(faults, rows)
    ]
    return {"faults": single, "grouped": groups}


def headline(report: dict[str, Any]) -> str:
    """One line about the file."""
    if "task" not in report:
        return f"{Path(report['path']).name}: cannot be used"
    inputs = f"{report['shape'][0]} features" if report["features"] else "x".join(map(str, report["shape"])) + " inputs"
    return (
        f"{Path(report['path']).name}: {report['kind']}, {report['rows']} rows, {inputs}, "
        f"{counted(len(report['clients']), 'client')}, {counted(len(report['contexts']), 'context')}, {report['task']}"
    )
