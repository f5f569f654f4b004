"""Write src/perinvfl/runs/presets/*.toml from published records: for each method, the setting and round a rule took;
for `recommended`, which has no setting, the last round.

python scripts/make_presets.py
"""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from perinvfl.results.scores import class_balanced, has_groups
from perinvfl.results.search_records import SearchRecords, read_published
from perinvfl.runs.records import PACKED, Run, find_runs, lead_scores, mean_known

ROOT = Path(__file__).parents[1]
PRESETS = ROOT / "src/perinvfl/runs/presets"
# Which methods get a preset: label -> name of the preset.
METHODS = {
    "FedAvg": "fedavg",
    "Ditto": "ditto",
    "FTFA": "ftfa",
    "pFedMe": "pfedme",
    "GroupDRO": "groupdro",
    "IRM": "irm",
    "IRM-L2": "irm_l2",
    "IRM-FT": "irm_ft",
    "PerInvFL": "perinvfl",
    "PerInvFL (GroupDRO)": "perinvfl_groupdro",
}
BEYOND = {
    "PerInvFL over inferred contexts": "perinvfl_inferred",
    "PerInvFL with the shortcut discounted": "discounted",
    "PerInvFL with the shortcut discounted, clients aligned": "aligned",
    "PerInvFL with the shortcut discounted, borders exchanged": "borders_exchanged",
}
# Folder, published tables in it, the rule that presets follow, and the methods.
DIGITS = ("rc_mnist", "rc_fmnist")
SOURCES = (
    ("results", DIGITS, "oracle", METHODS),
    ("results/beyond", (*DIGITS, "rc_mnist_blind", "waterbird"), "worst-inferred-context", BEYOND),
)
RECOMMENDED = ("rc_mnist", "rc_fmnist", "unrotated", "waterbird")  # in results/recommended


def main(presets: Path = PRESETS, read: Callable[[Path], SearchRecords] = read_published) -> None:
    for old in presets.glob("*.toml"):
        old.unlink()
    for folder, benchmarks, rule, methods in SOURCES:
        for benchmark in benchmarks:
            published = read(ROOT / folder / benchmark)
            for label, name in methods.items():
                if label in published.methods():
                    text = preset(published, label, name, rule, benchmark)
                    (presets / f"{name}-{benchmark}.toml").write_text(text, encoding="utf-8")
    for benchmark in RECOMMENDED:
        (presets / f"recommended-{benchmark}.toml").write_text(recommended(benchmark), encoding="utf-8")


def preset(published: SearchRecords, label: str, name: str, rule: str, benchmark: str) -> str:
    choice = published.choices(rule)[label]
    runs = published.runs_of(label, choice.setting)
    how = f"chosen by {rule}, stopped at the round that is best for all of them"
    return preset_text(runs, choice.round, f"{name}-{benchmark}", f"{label} on {benchmark}", how)


def recommended(benchmark: str) -> str:
    runs = [run for run in find_runs(ROOT / f"results/recommended/{benchmark}{PACKED}") if run.method == "Recommended"]
    last = runs[0].evaluations[-1]["round"]
    return preset_text(runs, last, f"recommended-{benchmark}", f"Recommended on {benchmark}", "last round, nothing set")


def preset_text(runs: list[Run], round: int, name: str, what: str, how: str) -> str:
    """what, how: who is run on which data, and how its setting and round came about."""
    asked = runs[0].asked
    reached = []
    for run in map(class_balanced, runs):
        event = next(event for event in run.evaluations if event["round"] == round)
        lead = lead_scores(event)
        reached.append(100 * fmean(mean_known(lead[case]) for case in run.spectrum))
    balanced = " class-balanced" if has_groups(runs[0]) else ""
    lines = [
        f"# {what}: {fmean(reached):.2f}{balanced} on average over the "
        f"shifted test contexts, {len(runs)} seeds; {how}.",
        f'name = "{name}"',
        "seeds = [0]",
    ]
    parts: dict[str, Any] = {key: asked[key] for key in ("data", "contexts", "model", "training") if key in asked}
    parts["training"] = {**parts["training"], "rounds": round}
    for part, settings in parts.items():
        lines += ["", f"[{part}]", *(f"{key} = {as_toml(value)}" for key, value in settings.items())]
    algorithm = {**asked["algorithm"], "label": runs[0].method}
    lines += ["", "[[algorithm]]", *(f"{key} = {as_toml(value)}" for key, value in algorithm.items())]
    return "\n".join(lines) + "\n"


def as_toml(value: Any) -> str:
    if isinstance(value, float):
        return repr(float(f"{value:.6g}"))
    return json.dumps(value)


if __name__ == "__main__":
    main()
