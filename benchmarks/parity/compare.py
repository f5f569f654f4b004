"""Scores of all projects, side by side, as records."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy

from benchmarks.parity.plan import ALPHA, CLIENTS, COMMITS, HIDDEN, REGIMES, TEST, TRAIN, Method, Regime, methods

RECORDS = Path(__file__).parents[2] / "results" / "parity" / "records.json"
Record = dict[str, Any]


def compare(folder: Path) -> None:
    """Write the records from what the runs left in a folder, and print them."""
    rows = [row for regime in REGIMES.values() for name, method in methods(regime).items()
            for row in _rows(folder, regime, name, method)]  # fmt: skip
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
        seeds, ours, theirs, apart = [], [], [], []
        for seed in regime.seeds:
            titles = {"perinvfl": name.removesuffix(", mended"), project: name}
            own, other = (folder / side / regime.name / f"{title}-{seed}.json" for side, title in titles.items())
            if not (own.exists() and other.exists()):
                continue
            seeds.append(seed)
            score = json.loads(own.read_text(encoding="utf-8"))
            measured = method.measured.get(project, "personal" if "personal" in score else "global")
            ours.append(round(score[measured], 6))
            theirs.append(round(json.loads(other.read_text(encoding="utf-8"))["reported"], 6))
            pair = [path.with_suffix(".npz") for path in (own, other)]
            if regime.batch == TRAIN and all(path.exists() for path in pair):  # else batches differ
                apart.append(_apart(*pair))
        if ours:
            row = {"regime": regime.name, "method": name, "project": project, "measured": measured,
                   "seeds": seeds, "ours": ours, "theirs": theirs}  # fmt: skip
            rows.append(row | ({"largest difference": max(apart)} if apart else {}))
    return rows


def _apart(own: Path, other: Path) -> float:
    """The largest difference of a parameter of the two last global models."""
    with numpy.load(own) as first, numpy.load(other) as second:
        return float(f"{max(float(abs(first[name] - second[name]).max()) for name in first.files):.2e}")
