"""The records behind a published table: which runs and rounds a selection rule takes of them. Never trains."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from perinvfl.core.shipped import published_places
from perinvfl.errors import UserError
from perinvfl.results.selection import LEAVE_ONE_CLIENT_OUT, ORACLE, RULES, Choice, Rule, Scores, choose, view
from perinvfl.runs.records import Run, read_packed

SEARCH, LEFT_OUT, CHOSEN, LONGER = (f"{name}.jsonl.xz" for name in ("search", "left_out", "chosen", "longer"))
FIRST = ("rc_mnist", "rc_fmnist", "waterbird")  # of several tables, those on the paper's data, in its order
Setting = tuple[str, int]  # a method, and the number of one of its settings


@dataclass(frozen=True)
class SearchRecords:
    """The records behind one table."""

    search: list[Run]
    left_out: list[Run]
    chosen: list[Run]

    def methods(self) -> list[str]:
        return list(dict.fromkeys(run.method for run in self.search))

    @property
    def settings(self) -> int:
        """How many settings of a method were searched; a method with nothing to search has one."""
        return max(Counter(run.method for run in self.search).values())

    @property
    def effort(self) -> str:
        return f"{self.settings} setting{'s' if self.settings > 1 else ''} per method"

    @cached_property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Settings of data, model and training that differ between the search and the runs that are shown, by name:
        what it was in the search, and what it is now. Of the first method; all differ in the same."""
        searched = {_key(run): run.asked for run in self.search}
        now = next((run for run in self.chosen if _key(run) in searched), None)
        if now is None:
            return {}
        before, found = searched[_key(now)], dict[str, tuple[Any, Any]]()
        for part in ("data", "contexts", "model", "training"):
            old, new = before.get(part) or {}, now.asked.get(part) or {}
            found |= {f"{part}.{key}": (old.get(key), new[key]) for key in new if new[key] != old.get(key)}
        return found

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
        if rule.name == LEAVE_ONE_CLIENT_OUT:
            return self.left_out
        if not rule.on_fresh_seeds or not self.chosen:
            return self.search
        if rule.name == ORACLE:
            return self.chosen
        return [run for run in self.chosen if _key(run) in self._known_without_tests]

    @cached_property
    def _known_without_tests(self) -> frozenset[Setting]:
        """The settings that have fresh seeds for the sake of rules without test data, as their records say."""
        known = set()
        for run in self.chosen:
            if run.purpose is None:
                return self._known_by_the_order_of_old_runs()
            if set(run.purpose.rules) - {ORACLE}:
                known.add(_key(run))
        return frozenset(known)

    def _known_by_the_order_of_old_runs(self) -> frozenset[Setting]:
        """The same where records do not say what a run was made for.

        How many finalists there were shows in the order of the runs: those for rules without test data come before the
        oracle's.
        """
        searched = SearchRecords(self.search, self.left_out, [])
        names = [name for name in searched.rules() if name != ORACLE]
        made = list(dict.fromkeys(map(_key, self.chosen)))
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
                seen = views_of(name, [run for run in self.looked_at(RULES[name]) if run.method == method])
                if seen:
                    taken[method] = choose(seen, own_rounds=bool(self.chosen) and RULES[name].own_rounds)
                    break
            else:
                raise UserError(f"No record of {method} holds what {rule_name} looks at.")
        return taken

    def runs_of(self, method: str, setting: int) -> list[Run]:
        """The fresh runs of one setting of a method; an error where there are none, as while they are being made."""
        runs = [run for run in self.chosen if _key(run) == (method, setting)]
        if not runs:
            raise UserError(
                f"{method}: setting {setting} of the search is chosen, and has no runs with fresh seeds yet; "
                "`python -m perinvfl.reproduce` makes them."
            )
        return runs

    def taken(self, rule_name: str, to_the_end: bool = False) -> list[Run]:
        """The fresh runs of the setting that a rule takes of each method, up to the round it takes or to the end."""
        taken = []
        for method, choice in self.choices(rule_name).items():
            runs = self.runs_of(method, choice.setting)
            for run, round in zip(runs, choice.rounds(len(runs)), strict=True):
                taken.append(_under_its_method(run if to_the_end else _until(run, round)))
        return taken

    def searched_best(self, rule_name: str) -> list[Run]:
        """The searched runs, each up to the round that is best by a rule; without those it can say nothing about."""
        runs = []
        for run in self.search:
            seen = view(RULES[rule_name], setting_of(run), [run])
            if seen is not None:
                runs.append(_until(run, seen.round))
        return runs


def published_folders(place: Path) -> dict[str, Path]:
    """Where the records of a published table lie, if that is what is meant: by its name or by its folder.

    A table may be made of several, one folder each; those on the paper's data come first.
    """

    def order(name: str) -> tuple[int, str]:
        return FIRST.index(name) if name in FIRST else len(FIRST), name

    for folder in published_places(place):
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
    misled = [run for records in published for run in records.chosen if not run.asked["data"].get("grayscale")]
    return honest.name if all(view(honest, 0, [run]) for run in misled if run.broken is None) else ORACLE


def setting_of(run: Run) -> int:
    """Its place in the search: every run of a published table has one."""
    if run.setting is None:
        raise UserError(f"{run.folder} holds {run.label}, seed {run.seed}, which is no setting of a search.")
    return run.setting


def _key(run: Run) -> Setting:
    return run.method, setting_of(run)


def views_of(rule_name: str, runs: list[Run]) -> list[Scores]:
    by_setting: dict[int, list[Run]] = {}
    for run in runs:
        by_setting.setdefault(setting_of(run), []).append(run)
    views = [view(RULES[rule_name], setting, own) for setting, own in by_setting.items()]
    return [seen for seen in views if seen is not None]


def finalists_of(found: SearchRecords, rule_name: str, count: int) -> list[Run]:
    """The searched runs of the best settings of each method by a rule."""
    best = []
    for method in found.methods():
        runs = [run for run in found.search if run.method == method]
        views = [(view(RULES[rule_name], setting_of(run), [run]), run) for run in runs]
        seen = [(looked.best, run) for looked, run in views if looked is not None]
        best += [run for _, run in sorted(seen, key=lambda pair: -pair[0])[:count]]
    return best


def wanted_settings(found: SearchRecords, rule_names: Sequence[str], finalists: int) -> dict[Setting, tuple[str, ...]]:
    """What is to be made again for these rules, in order; and for each, the rules that ask for it."""
    wanted: dict[Setting, dict[str, None]] = {}
    for name in rule_names:
        asked = []
        for method, choice in found.choices(name).items():
            asked += [(method, choice.setting), (method, choice.last_setting)]
        if RULES[name].on_fresh_seeds:
            asked += map(_key, finalists_of(found, name, finalists))
        for key in asked:
            wanted.setdefault(key, {})[name] = None
    return {key: tuple(names) for key, names in wanted.items()}


def _until(run: Run, last: int) -> Run:
    """The run as it was after a round."""
    return replace(run, events=[e for e in run.events if e["event"] != "evaluation" or e["round"] <= last])


def _under_its_method(run: Run) -> Run:
    """The run called by its method, and no longer one of many settings."""
    named = run.with_facts(replace(run.facts, setting=None))
    asked = {**run.asked, "algorithm": {**run.asked["algorithm"], "label": run.method}}
    return replace(named, events=[{**named.start, "asked": asked}, *named.events[1:]])
