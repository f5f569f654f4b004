"""The records behind a published table: which runs and rounds a selection rule takes of them. Never trains."""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from perinvfl.data.registry import BENCHMARKS
from perinvfl.errors import UserError
from perinvfl.results.selection import RULES, Choice, Rule, Scores, choose, view
from perinvfl.runs.records import Run, read_packed

SEARCH, LEFT_OUT, CHOSEN, LONGER = (f"{name}.jsonl.xz" for name in ("search", "left_out", "chosen", "longer"))
ORACLE = "oracle"  # the last of the rules, and the only one that knows test results


@dataclass(frozen=True)
class SearchRecords:
    """The records behind one table."""

    search: list[Run]
    left_out: list[Run]
    chosen: list[Run]

    def methods(self) -> list[str]:
        return list(dict.fromkeys(method_of(run) for run in self.search))

    @property
    def settings(self) -> int:
        """How many settings of a method were searched; a method with nothing to search has one."""
        return max(Counter(map(method_of, self.search)).values())

    @property
    def effort(self) -> str:
        return f"{self.settings} setting{'s' if self.settings > 1 else ''} a method"

    def rules(self) -> list[str]:
        """The rules that find something to look at in these records."""
        return [name for name, rule in RULES.items() if any(view(rule, 0, [run]) for run in self.looked_at(rule))]

    def looked_at(self, rule: Rule) -> list[Run]:
        """Where a rule looks.

        Two rules look at the very runs they are reported on: the oracle, as someone does who tunes on the test
        contexts, and the worst inferred context, which looks at the clients' own held-out data, of which every run has
        its own. The best of a search on one seed is often luck, and does not come again with another.

        The latter knows no test data, so it does not see settings that have fresh seeds for the oracle's sake alone.
        """
        if rule.name == "leave-one-client-out":
            return self.left_out
        if not rule.on_fresh_seeds or not self.chosen:
            return self.search
        if rule.name == ORACLE:
            return self.chosen
        return [run for run in self.chosen if (method_of(run), setting_of(run)) in self._known_without_tests]

    @cached_property
    def _known_without_tests(self) -> frozenset[tuple[str, int]]:
        """The settings that have fresh seeds for the sake of rules without test data, which come before the oracle's.

        How many finalists there were is not on record; it shows in the order of the runs.
        """
        searched = SearchRecords(self.search, self.left_out, [])
        names = [name for name in searched.rules() if name != ORACLE]
        made = list(dict.fromkeys((method_of(run), setting_of(run)) for run in self.chosen))
        known = list(wanted_settings(searched, names, 0))
        if not any(RULES[name].on_fresh_seeds for name in names):
            return frozenset(known)  # the number of finalists changes nothing
        for finalists in range(1, len(made) + 1):
            wanted = list(wanted_settings(searched, names, finalists))
            if len(wanted) > len(made):
                break
            if wanted == made[: len(wanted)]:
                known = wanted
        return frozenset(known)

    def choices(self, rule_name: str) -> dict[str, Choice]:
        """What a rule takes for each method; what `source` takes for one that has nothing for the rule to look at.

        A model of the shape alone has no shortcut that a reference model could show.
        """
        taken = {}
        for method in self.methods():
            for name in (rule_name, "source"):
                seen = views_of(name, [run for run in self.looked_at(RULES[name]) if method_of(run) == method])
                if seen:
                    taken[method] = choose(seen, own_rounds=bool(self.chosen) and RULES[name].own_rounds)
                    break
            else:
                raise UserError(f"No record of {method} holds what {rule_name} looks at.")
        return taken

    def runs_of(self, method: str, setting: int) -> list[Run]:
        """The fresh runs of one setting of a method."""
        return [run for run in self.chosen if method_of(run) == method and setting_of(run) == setting]

    def taken(self, rule_name: str, to_the_end: bool = False) -> list[Run]:
        """The fresh runs of the setting that a rule takes of each method, up to the round it takes or to the end."""
        taken = []
        for method, choice in self.choices(rule_name).items():
            runs = self.runs_of(method, choice.setting)
            for run, round in zip(runs, choice.rounds(len(runs)), strict=True):
                taken.append(_as(run, method, None if to_the_end else round))
        return taken

    def searched_best(self, rule_name: str) -> list[Run]:
        """The searched runs, each up to the round that is best by a rule; without those it can say nothing about."""
        runs = []
        for run in self.search:
            seen = view(RULES[rule_name], setting_of(run), [run])
            if seen is not None:
                runs.append(_as(run, label_of(run), seen.round))
        return runs


def published_folders(place: Path) -> dict[str, Path]:
    """Where the records of a published table lie, if that is what is meant: by its name or by its folder.

    A table may be made of several, one folder each; those that are called as a benchmark come first.
    """

    def order(name: str) -> tuple[int, str]:
        return list(BENCHMARKS).index(name) if name in BENCHMARKS else len(BENCHMARKS), name

    beside_source = Path(__file__).parents[3] / "results"
    for folder in (place, Path("results") / place, beside_source / place):
        if (folder / SEARCH).exists():
            return {folder.name: folder}
        found = {inner.parent.name: inner.parent for inner in folder.glob(f"*/{SEARCH}")}
        if found:
            return {name: found[name] for name in sorted(found, key=order)}
    return {}


def read_published(folder: Path) -> SearchRecords:
    missing = [name for name in (SEARCH, CHOSEN) if not (folder / name).exists()]
    if missing:
        raise UserError(
            f"{folder} holds no {missing[0]}; `python -m perinvfl.reproduce FILE.toml --out {folder}` makes it."
        )

    def read(name: str) -> list[Run]:
        return read_packed(folder / name) if (folder / name).exists() else []

    return SearchRecords(read(SEARCH), read(LEFT_OUT), read(CHOSEN) + read(LONGER))


def default_rule(*published: SearchRecords) -> str:
    """The honest rule where every table was made for it, else what the paper's "tuned optimal" amounts to.

    Made for it: it can judge every method that could take a shortcut, which a model of the shape alone cannot.
    """
    honest = RULES["worst-inferred-context"]
    misled = [run for records in published for run in records.chosen if not run.start["asked"]["data"].get("grayscale")]
    return honest.name if all(view(honest, 0, [run]) for run in misled if run.broken is None) else ORACLE


def method_of(run: Run) -> str:
    """The label without the number of the setting: "IRM #7 without 2" is a run of IRM."""
    return label_of(run).partition(" #")[0]


def setting_of(run: Run) -> int:
    return int(label_of(run).partition(" #")[2].split()[0])


def views_of(rule_name: str, runs: list[Run]) -> list[Scores]:
    settings = dict.fromkeys(setting_of(run) for run in runs)
    views = [
        view(RULES[rule_name], setting, [run for run in runs if setting_of(run) == setting]) for setting in settings
    ]
    return [seen for seen in views if seen is not None]


def finalists_of(found: SearchRecords, rule_name: str, count: int) -> list[Run]:
    """The searched runs of the best settings of each method by a rule."""
    best = []
    for method in found.methods():
        runs = [run for run in found.search if method_of(run) == method]
        views = [(view(RULES[rule_name], setting_of(run), [run]), run) for run in runs]
        seen = [(looked.best, run) for looked, run in views if looked is not None]
        best += [run for _, run in sorted(seen, key=lambda pair: -pair[0])[:count]]
    return best


def wanted_settings(found: SearchRecords, rule_names: Sequence[str], finalists: int) -> dict[tuple[str, int], None]:
    """Methods and settings to be made again for these rules, in order."""
    wanted: dict[tuple[str, int], None] = {}
    for name in rule_names:
        for method, choice in found.choices(name).items():
            wanted[method, choice.setting] = wanted[method, choice.last_setting] = None
        if RULES[name].on_fresh_seeds:
            for run in finalists_of(found, name, finalists):
                wanted[method_of(run), setting_of(run)] = None
    return wanted


def _as(run: Run, label: str, last: int | None) -> Run:
    """A run under another label, up to a round."""
    start = copy.deepcopy(run.start)
    start["asked"]["algorithm"]["label"] = label
    later = [] if last is None else [event for event in run.evaluations if event["round"] > last]
    return Run(run.folder, [start, *(event for event in run.events[1:] if event not in later)])


def label_of(run: Run) -> str:
    return run.start["asked"]["algorithm"]["label"]
