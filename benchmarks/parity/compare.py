"""Scores of all projects, side by side, as records."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy

from benchmarks.parity.files import first_file, plain_file
from benchmarks.parity.plan import (
    ALPHA,
    CLIENTS,
    COMMITS,
    HIDDEN,
    REGIMES,
    TEST,
    TRAIN,
    Method,
    Regime,
    methods,
    name_here,
)

RECORDS = Path(__file__).parents[2] / "results" / "parity" / "records.json"
Record = dict[str, Any]


def compare(folder: Path) -> None:
    """Write the records from what the runs left in a folder, and print them; rows that it has nothing of stay."""
    before = json.loads(RECORDS.read_text(encoding="utf-8"))["rows"] if RECORDS.exists() else []
    rows = []
    for regime in REGIMES.values():
        for name, method in methods(regime).items():
            kept = [row for row in before if (row["regime"], row["method"]) == (regime.name, name)]
            latest = {row["project"]: row for row in [*kept, *_rows(folder, regime, name, method)]}
            rows += [latest[project] for project in COMMITS if project in latest]
    data = {"clients": CLIENTS, "alpha": ALPHA, "train": TRAIN, "test": TEST, "hidden": HIDDEN}
    regimes = {name: {"rounds": r.rounds, "batch": r.batch, "steps": r.steps, "rate": r.rate, "seeds": list(r.seeds)}
               for name, r in REGIMES.items()}  # fmt: skip
    RECORDS.parent.mkdir(parents=True, exist_ok=True)
    found = {"commits": COMMITS, "data": data, "regimes": regimes, "rows": rows}
    RECORDS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        ours, theirs = (100 * statistics.mean(row[side]) for side in ("ours", "theirs"))
        apart = row.get("largest difference")
        print(
            f"{row['regime']:13} {row['method']:26} {row['project']:9} {row['measured']:9} {ours:6.2f} {theirs:6.2f} "
            f"{theirs - ours:+6.2f}" + (f"  parameters {apart:.1e}" if apart is not None else "")
        )


def _rows(folder: Path, regime: Regime, name: str, method: Method) -> list[Record]:
    """One for each project that has the method: accuracies by seed."""
    rows = []
    for project, settings in (("PFLlib", method.pfllib), ("FL-bench", method.flbench)):
        if settings is None:
            continue
        seeds, ours, theirs, apart, begun = [], [], [], [], []
        for seed in method.seeds or regime.seeds:
            titles = {"perinvfl": name_here(name), project: name}
            own, other = (folder / side / regime.name / f"{title}-{seed}.json" for side, title in titles.items())
            if not (own.exists() and other.exists()):
                continue
            seeds.append(seed)
            score = json.loads(own.read_text(encoding="utf-8"))
            measured = method.measured.get(project, "personal" if "personal" in score else "global")
            ours.append(round(score[measured], 6))
            theirs.append(round(json.loads(other.read_text(encoding="utf-8"))["reported"], 6))
            if regime.batch == TRAIN or method.same_batches:  # else batches differ
                apart += _apart(own.with_suffix(".npz"), other.with_suffix(".npz"))
            if method.same_batches:
                begun += _apart(first_file(own), first_file(other))
        if ours:
            row: Record = {"regime": regime.name, "method": name, "project": project, "measured": measured,
                           "seeds": seeds, "ours": ours, "theirs": theirs}  # fmt: skip
            row |= {"largest difference": max(apart)} if apart else {}
            files = [plain_file(folder, name, seed) for seed in seeds]
            if all(file.exists() for file in files):
                row["double precision"] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
            rows.append(row | ({"after the first round": max(begun)} if begun else {}))
    return rows


def _apart(own: Path, other: Path) -> list[float]:
    """The largest difference of a parameter of two global models, if both were kept."""
    if not (own.exists() and other.exists()):
        return []
    with numpy.load(own) as first, numpy.load(other) as second:
        return [float(f"{max(float(abs(first[name] - second[name]).max()) for name in first.files):.2e}")]
