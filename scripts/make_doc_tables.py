"""Write the tables of docs/*.md from the published records: python scripts/make_doc_tables.py [--check]

A table stands between <!-- table: NAME --> and <!-- end of table -->; NAME is a kind out of KINDS below and a folder of
results/.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from perinvfl.learning.groups import Score, balanced_accuracy
from perinvfl.results.folds import clients_of, join_folds
from perinvfl.results.scores import has_groups
from perinvfl.results.search_records import read_published
from perinvfl.results.table import Row, by_setting, published_table
from perinvfl.results.worlds import read_worlds
from perinvfl.results.worlds_table import summaries
from perinvfl.runs.records import PACKED, Run, mean_known, read_packed
from perinvfl.scoring.run_scores import mean_of, run_scores

HONEST = "worst-inferred-context"
ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- table: (?P<name>[^>]+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where a table is out of date")
    given = parser.parse_args(arguments)
    stale = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        old = path.read_text(encoding="utf-8")
        new = BLOCK.sub(lambda found: f"{found[1]}{_made(found['name'])}{found[3]}", old)
        if new != old:
            stale.append(path.name)
            if not given.check:
                path.write_text(new, encoding="utf-8")
    if stale:
        print(f"{'Out of date' if given.check else 'Written'}: {', '.join(stale)}")
    return int(given.check and bool(stale))


def _made(name: str) -> str:
    kind, _, folder = name.partition(" ")
    return "\n" + "\n".join(KINDS[kind](ROOT / "results" / folder)) + "\n\n"


def by_rule(folder: Path) -> list[str]:
    """The paper's average, and what each rule takes."""
    tables = {rule: _measured(folder, rule) for rule in ("oracle", "source", "leave-one-client-out")}
    lines = _header("method", "paper", "oracle", "its worst case", "oracle, last round", *list(tables)[1:])
    for method, row in tables["oracle"].items():
        others = [_percent(tables[rule][method].average) for rule in list(tables)[1:]]
        numbers = (row.paper_average, row.average, row.worst, row.last_round)
        lines.append(_line(method, *map(_percent, numbers), *others))
    return lines


def on_one_nu(folder: Path) -> list[str]:
    """The ablation: oracle, each case at the ends, and ν beside it."""
    lines = _header("method", "paper", "average", "worst case", "its ν", "last round")
    for method, row in _measured(folder, "oracle").items():
        numbers = (row.paper_average, row.average, row.worst, row.of_global, row.last_round)
        lines.append(_line(method, *map(_percent, numbers)))
    return lines


def honest(folder: Path) -> list[str]:
    """What the rule without test data takes, and the price in distribution."""
    lines = _header(
        "method", "average of p_test 0.1 … 0.5", "worst of them", "its global model", "in distribution, p = 0.9"
    )
    for method, row in _measured(folder, HONEST).items():
        within = row.cases["0.9"][0] if "0.9" in row.cases else None
        lines.append(_line(method, *map(_percent, (row.average, row.worst, row.of_global, within))))
    return lines


def birds(folder: Path) -> list[str]:
    """Photographs: plain accuracy as in the paper, and by the oracle's choice what says more."""
    by_source = _measured(folder, "source")
    balanced = _measured(folder, "oracle", "balanced")
    plain = "paper, accuracy", "source, accuracy", "oracle, accuracy"
    groups = "on birds left over", "worst group", "its global model"
    lines = _header("method", *plain, "class-balanced", "at p_test = 0.1", *groups)
    for method, row in _measured(folder, "oracle").items():
        same, by_group = balanced[method], row.by_group or {}
        numbers = (
            row.paper_average,
            by_source[method].average,
            row.average,
            same.average,
            same.cases["0.1"][0],
            by_group.get("Left over, balanced"),
            by_group.get("Worst group"),
            same.of_global,
        )
        lines.append(_line(method, *map(_percent, numbers)))
    return lines


def honest_birds(folder: Path) -> list[str]:
    """Photographs, by the rule without test data, class-balanced."""
    lines = _header(
        "method",
        "class-balanced average of p_test 0.1 … 0.5",
        "at p_test = 0.1",
        "its global model",
        "on birds left over",
        "plain accuracy",
    )
    plain = _measured(folder, HONEST)
    for method, row in _measured(folder, HONEST, "balanced").items():
        left_over = (row.by_group or {}).get("Left over, balanced")
        numbers = (row.average, row.cases["0.1"][0], row.of_global, left_over, plain[method].average)
        lines.append(_line(method, *map(_percent, numbers)))
    return lines


# The rows of the story, and its columns by the labels that methods have.
DATA = {
    "rc_mnist": "RC-MNIST",
    "rc_fmnist": "RC-FMNIST",
    "rc_mnist_blind": "RC-MNIST, models blind to rotations",
    "unrotated": "two clients, no rotation",
    "twenty_clients": "twenty clients",
    "no_shortcut": "one client without a shortcut",
    "weak_shortcut": "a weak shortcut",
    "waterbird": "WaterBird, class-balanced",
}
COLUMNS = {
    "FedAvg": ("FedAvg",),
    "IRM": ("IRM",),
    "PerInvFL, as in the paper": ("PerInvFL, as in the paper",),
    "over inferred contexts": ("PerInvFL over inferred contexts",),
    "shortcut discounted": ("PerInvFL with the shortcut discounted",),
    "and clients aligned, or borders exchanged": (
        "PerInvFL with the shortcut discounted, clients aligned",
        "PerInvFL with the shortcut discounted, borders exchanged",
    ),
    "shape only": ("Shape only (FedAvg on grayscale)",),
}


def story(folder: Path) -> list[str]:
    """All data sets in one table: average and worst case of each method by the rule without test data."""

    def cell(name: str, label: str) -> str:
        row = _shown(folder / name, HONEST)[label]
        return f"{_percent(row.average)} ({_percent(row.worst)})"

    return _all_data(folder, list(COLUMNS), cell)


def rules(folder: Path) -> list[str]:
    """What three rules take from the same runs."""

    def cell(name: str, label: str) -> str:
        return " / ".join(_percent(_shown(folder / name, rule)[label].average) for rule in (HONEST, "oracle", "source"))

    return _all_data(folder, [column for column in COLUMNS if column not in ("FedAvg", "shape only")], cell)


def _all_data(folder: Path, columns: list[str], cell: Callable[[str, str], str]) -> list[str]:
    lines = _header("data", *columns)
    for name, title in DATA.items():
        there = _shown(folder / name, HONEST)
        labels = [next((label for label in COLUMNS[column] if label in there), "") for column in columns]
        lines.append(_line(title, *(cell(name, label) if label else "" for label in labels)))
    return lines


def _shown(folder: Path, rule: str) -> dict[str, Row]:
    """As figures do: class-balanced where classes are of unlike size."""
    return _measured(folder, rule, "balanced" if has_groups(read(folder).chosen[0]) else "accuracy")


def worlds(folder: Path) -> list[str]:
    """One row for each method over the reported worlds."""
    lines = _header("method", "under shift", "to the bound", "at worst", "in distribution", "no shortcut, to the bound")
    rows = [row for row in summaries(read_worlds(folder)) if row.shift is not None]
    for row in rows:  # the bound, which runs everywhere, comes first
        only = f" ({row.worlds} of {rows[0].worlds} worlds)" if row.worlds < rows[0].worlds else ""
        points = (row.shift, row.to_bound, row.worst_to_bound, row.inside, row.none)
        lines.append(_line(row.method + only, *(_percent(number, 1) for number in points)))
    return lines


def every_world(folder: Path) -> list[str]:
    """Accuracy under shift of some methods in each reported world; mean squared error for structural equations."""
    records = read_worlds(folder)
    methods = ["FedAvg", "PerInvFL, as in the paper", "GroupDRO over JTT's split", "Recommended"]
    lines = _header("world", "bound", *methods)
    for world in records.worlds:
        if (bound := records.bound(world)) is not None:
            there = records.scores[world]
            scores = (there[method].shift if method in there else None for method in methods)
            lines.append(_line(world, *(_percent(score, 1) for score in (bound, *scores))))
    return lines


def nothing_set(folder: Path) -> list[str]:
    """`recommended` on the data of the paper: last round, mean over the shifted contexts."""
    lines = _header("data", "method", "under shift", "seed by seed", "its global model", "shortcut")
    for name, title in (*DATA.items(), ("waterbird_224", "the same, 224 pixels, full width")):
        path = folder / f"{name}{PACKED}"
        for method, runs in by_setting(read_packed(path)).items() if path.exists() else ():
            personal, shared = ([_under_shift(run, kind) for run in runs] for kind in ("personal", "global"))
            each = ", ".join(f"{score:.1f}" for score in personal)
            done = [_done_about_shortcut(run) for run in runs]
            found = ", ".join(f"{what} in {done.count(what)} of {len(runs)} seeds" for what in dict.fromkeys(done))
            means = (f"{statistics.fmean(scores):.1f}" for scores in (personal, shared))
            lines.append(_line(title, method, next(means), each, next(means), found))
    return lines


def _done_about_shortcut(run: Run) -> str:
    removed = run.found["shortcut"]["left_out"] or run.found["shortcut"]["directions"]
    return "discounted" if "right" in run.found else "removed" if removed else "not found"


def _under_shift(run: Run, kind: str) -> float:
    """In percent, class-balanced over all clients where classes are of unlike size."""
    event = run.evaluations[-1]
    if not has_groups(run):
        return 100 * statistics.fmean(mean_known(event[kind][case]) for case in run.spectrum)
    there = run.notes["groups"]["counts"]
    return 100 * statistics.fmean(balanced_accuracy(event[f"{kind} groups"][c], there[c]) for c in run.spectrum)


def within_hospitals(folder: Path) -> list[str]:
    """Accuracy of each hospital's own model for further patients of its own."""
    runs = by_setting(read_packed(folder / "within_hospitals.jsonl.xz"))
    first = next(iter(runs.values()))
    hospitals = clients_of(first[0])
    constants = [[run.notes["constant"]["same hospital"][k] for run in first] for k in range(len(hospitals))]
    lines = [
        *_header("method", *hospitals),
        _line("a constant answer", *(f"{100 * statistics.fmean(own):.1f}" for own in constants)),
    ]
    for method, same in runs.items():
        cases = [run_scores(run)["cases"]["same hospital"]["clients"] for run in same]
        each = [mean_of([clients[name]["scores"] for clients in cases])["accuracy"] for name in hospitals]
        lines.append(_line(method, *(_with_interval(score, 100) for score in each)))
    return lines


def hospitals_left_out(folder: Path) -> list[str]:
    """Accuracy and AUROC of the shared model for the patients of a hospital that took no part."""
    runs = by_setting(join_folds(read_packed(folder / "each_hospital_left_out.jsonl.xz")))
    first = next(iter(runs.values()))[0]
    stored = run_scores(first)["cases"]
    counts = [next(iter(stored[case]["clients"].values()))["counts"] for case in first.spectrum]
    alike: dict[tuple[str, ...], list[str]] = {}  # Ditto's shared model is FedAvg's
    for method, same in runs.items():
        cases = [run_scores(run, "global")["cases"] for run in same]
        cells: list[str] = []
        for name, factor in (("accuracy", 100), ("auroc", 1)):
            means = [mean_of([of_seed[case]["mean"] for of_seed in cases])[name] for case in first.spectrum]
            cells += (_with_interval(mean, factor) for mean in means)
        alike.setdefault(tuple(cells), []).append(method)
    lines = [
        *_header("shared model of", "", *first.spectrum),
        _line("the better constant there", "accuracy", *(f"{100 * max(n) / sum(n):.1f}" for n in counts)),
    ]
    for numbers, methods in alike.items():
        half = len(numbers) // 2
        lines.append(_line(", ".join(methods), "accuracy", *numbers[:half]))
        lines.append(_line("", "AUROC", *numbers[half:]))
    return lines


def _with_interval(score: dict[str, float | None], factor: float) -> str:
    value, low, high = (score[key] for key in ("value", "low", "high"))
    assert value is not None and low is not None and high is not None
    digits = 1 if factor == 100 else 2
    return f"{factor * value:.{digits}f} [{factor * low:.{digits}f}, {factor * high:.{digits}f}]"


def parity(kind: str) -> Callable[[Path], list[str]]:
    """Other people's code beside this, mean over seeds; where nothing is drawn, how far the models are apart."""
    last = {"full batches": ["parameters"], "same batches": ["first round", "last round", "seeds"]}
    columns = last.get(kind, ["standard error", "seeds"])

    def made(folder: Path) -> list[str]:
        lines = _header("method", "against", "accuracy of", "here", "there", "difference", *columns)
        for row in json.loads((folder / "records.json").read_text(encoding="utf-8"))["rows"]:
            name = row["method"].removesuffix(", same batches")
            if kind != (row["regime"] if name == row["method"] else "same batches"):
                continue
            here, there = (100 * statistics.mean(row[side]) for side in ("ours", "theirs"))
            apart = [100 * (b - a) for a, b in zip(row["ours"], row["theirs"], strict=True)]
            known = {"parameters": row.get("largest difference"), "last round": row.get("largest difference")}
            known["first round"] = row.get("after the first round")
            cells = {column: "" if number is None else f"{number:.0e}" for column, number in known.items()}
            cells["seeds"] = str(len(apart))
            cells["standard error"] = f"{statistics.stdev(apart) / len(apart) ** 0.5:.2f}" if len(apart) > 1 else ""
            models = {"personal": "each client's model", "global": "the global model"}[row["measured"]]
            far = f"{round(there - here, 2) + 0.0:+.2f}".replace("-", "−").replace("+0.00", "0.00")
            first = (name, row["project"], models, f"{here:.2f}", f"{there:.2f}", far)
            lines.append(_line(*first, *(cells[column] for column in columns)))
        return lines

    return made


KINDS: dict[str, Callable[[Path], list[str]]] = {
    "by-rule": by_rule,
    "one-nu": on_one_nu,
    "honest": honest,
    "birds": birds,
    "honest-birds": honest_birds,
    "story": story,
    "rules": rules,
    "worlds": worlds,
    "every-world": every_world,
    "nothing-set": nothing_set,
    "within-hospitals": within_hospitals,
    "hospitals-left-out": hospitals_left_out,
    "parity-full": parity("full batches"),
    "parity-mini": parity("mini-batches"),
    "parity-same": parity("same batches"),
}
read = cache(read_published)  # by folder


@cache
def _measured(folder: Path, rule: str, score: Score = "accuracy") -> dict[str, Row]:
    return {row.method: row for row in published_table(read(folder), rule, score).rows if row.kind != "paper"}


def _header(*names: str) -> list[str]:
    return [_line(*names), "|---" * len(names) + "|"]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(number: float | None, digits: int = 2) -> str:
    return "" if number is None else f"{number:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
