"""The settings of a search, ranked by a rule at their last round, where a run of the winner ends too. Never trains."""

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perinvfl.core.naming import counted
from perinvfl.errors import UserError
from perinvfl.results.render import Text
from perinvfl.results.search_records import setting_of
from perinvfl.results.selection import LEAVE_ONE_CLIENT_OUT, ORACLE, RULES, Rule, rule_named, view
from perinvfl.results.table import left_out_notes
from perinvfl.runs.records import Cases, Run, lead_scores, mean_known

if TYPE_CHECKING:
    from perinvfl.runs.experiment import Experiment

SOURCE, INFERRED = "source", "worst-inferred-context"
PREFERRED = (INFERRED, SOURCE)  # of the rules that need no test data, the first that applies
NONE_LEFT_OUT = "a sweep trains with all clients, so none is left out (`python -m perinvfl.reproduce` does that)"
NOTHING_HELD_OUT = (
    "Settings are not ranked: nothing is held out to rank them by without looking at test results; "
    "make data.holdout larger than 0."
)


@dataclass(frozen=True)
class Ranked:
    """One setting of one method."""

    method: str
    setting: int
    runs: list[Run]  # over seeds, and over the folds of leave-one-context-out
    settings: dict[str, Any]  # those that differ between the settings of its method
    score: float  # by the rule, larger is better: accuracies in percent, errors of a regression negative
    deviation: float  # over seeds

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.runs})


@dataclass(frozen=True)
class Ranking:
    rule: Rule
    ranked: list[Ranked]  # best first
    notes: list[str]
    regression: bool

    @property
    def best(self) -> Ranked:
        return self.ranked[0]


def is_search(runs: list[Run]) -> bool:
    """Whether these are the trials of a search."""
    return bool(runs) and all(run.setting is not None for run in runs)


def rank(runs: list[Run], rule_name: str = "") -> Ranking:
    """By the rule that is named, else by the first that needs no test data and finds something to look at."""
    finished = [run for run in runs if run.finished and run.broken is None and run.evaluations]
    if not finished:
        raise UserError("There is no finished run here; `perinvfl sweep FILE.toml` makes some.")
    rule = rule_named(rule_name) if rule_name else _default(finished)
    groups: dict[tuple[str, int], list[Run]] = {}
    # Runs from before anything was held out may lie beside others of the same search.
    held_out = [run for run in finished if rule.name != SOURCE or view(rule, 0, [run])] or finished
    for run in held_out:
        groups.setdefault((run.method, setting_of(run)), []).append(run)
    ranked, unseen = [], 0
    for (method, setting), own in groups.items():
        of_setting = [run for run in runs if (run.method, run.setting) == (method, setting)]
        broken = any(run.broken is not None or run.pruned is not None for run in of_setting)
        by_seed = {} if broken else _by_seed(rule, setting, own)
        if by_seed:
            values = [statistics.fmean(scores) for scores in by_seed.values()]
            varying = _varying(own[0], [run for run in finished if run.method == method])
            mean, deviation = statistics.fmean(values), statistics.pstdev(values)
            ranked.append(Ranked(method, setting, own, varying, mean, deviation))
        else:
            unseen += not broken
    if not ranked:
        raise UserError(_inapplicable(rule, finished))
    ranked.sort(key=lambda entry: -entry.score)
    notes = [f"{unseen} settings hold nothing that {rule.name} looks at, and are not ranked."] if unseen else []
    if len(held_out) < len(finished):
        notes.append(f"{counted(len(finished) - len(held_out), 'run')} without held-out data left out.")
    return Ranking(rule, ranked, [*notes, *left_out_notes(runs)], finished[0].task == "regression")


def check_applies(rule: Rule, experiment: "Experiment") -> None:
    """Refuse a rule that would find nothing to look at, before anything is trained."""
    inferred = [trial.contexts.infer != "given" for trial in experiment.trials]
    if rule.name == LEAVE_ONE_CLIENT_OUT:
        raise UserError(f"--rule {rule.name}: {NONE_LEFT_OUT}; use {SOURCE}.")
    if rule.name == INFERRED and not any(inferred):
        raise UserError(
            f"--rule {rule.name}: this file does not ask for inferred contexts (contexts.infer); use {SOURCE}."
        )
    first = {trial.label: trial for trial in reversed(experiment.trials)}
    if rule.name != ORACLE and any(trial.federation().validation is None for trial in first.values()):
        raise UserError(NOTHING_HELD_OUT)


def _default(finished: list[Run]) -> Rule:
    for name in PREFERRED:
        if all(view(RULES[name], 0, [run]) for run in finished):
            return RULES[name]
    if any(view(RULES[SOURCE], 0, [run]) for run in finished):
        return RULES[SOURCE]
    raise UserError(NOTHING_HELD_OUT)


def _inapplicable(rule: Rule, finished: list[Run]) -> str:
    why = f"these runs hold nothing that it looks at ({rule.doc})"
    if rule.name == LEAVE_ONE_CLIENT_OUT:
        why = NONE_LEFT_OUT
    others = [name for name in RULES if any(view(RULES[name], 0, [run]) for run in finished)]
    return f"--rule {rule.name}: {why}; there is {', '.join(others)}."


def _by_seed(rule: Rule, setting: int, runs: list[Run]) -> dict[int, list[float]]:
    """The scores at the last round of each seed's runs; several where contexts are left out in turn."""
    found: dict[int, list[float]] = {}
    for run in runs:
        seen = view(rule, setting, [run])
        last = run.evaluations[-1]["round"]
        if seen is None or last not in seen.scores:
            return {}
        found.setdefault(run.seed, []).append((1 if run.task == "regression" else 100) * seen.scores[last])
    return found


def _varying(run: Run, rivals: list[Run]) -> dict[str, Any]:
    own = run.asked["algorithm"]
    keys = [key for key in own if key not in ("name", "label")]
    return {key: own[key] for key in keys if any(other.asked["algorithm"].get(key) != own[key] for other in rivals)}


def ranking_text(ranking: Ranking) -> Text:
    """One row per setting, best first."""
    columns = list(dict.fromkeys(key for entry in ranking.ranked for key in entry.settings))
    measure = "Mean squared error" if ranking.regression else "Accuracy %"
    header = ["Rank", "Method", *columns, f"{measure}, {ranking.rule.name}"]
    rows = [
        [
            str(place),
            f"{entry.method} #{entry.setting}",
            *(_shown(entry.settings[key]) if key in entry.settings else "" for key in columns),
            _score(entry, ranking.regression),
        ]
        for place, entry in enumerate(ranking.ranked, start=1)
    ]
    seeds = max(entry.seeds for entry in ranking.ranked)
    about = f"Ranked by the rule {ranking.rule.name} at the last round: {ranking.rule.doc}"
    notes = [about + (f"; mean over {seeds} seeds, ± over seeds." if seeds > 1 else ".")]
    if ranking.rule.name == ORACLE:
        notes.append("This looks at test results: what the winner scores there is optimistic.")
    if ranking.rule.name == SOURCE:
        notes.append("A shortcut that holds in the training contexts raises this score too (docs/choosing.md).")
    best = ranking.best
    notes.append(f"Best: {best.method} #{best.setting}. In the tests, looked at after the choice: {_tests(best)}.")
    return Text(f"{ranking.best.runs[0].experiment}: settings, best first", header, rows, [*notes, *ranking.notes])


def ranking_json(ranking: Ranking) -> dict[str, Any]:
    return {
        "rule": ranking.rule.name,
        "measure": "mean squared error" if ranking.regression else "accuracy",
        "settings": [
            {
                "rank": place,
                "method": entry.method,
                "setting": entry.setting,
                "varying": entry.settings,
                "score": -entry.score if ranking.regression else entry.score,
                "deviation_over_seeds": entry.deviation,
                "seeds": entry.seeds,
                "tests": _test_scores(entry),
            }
            for place, entry in enumerate(ranking.ranked, start=1)
        ],
        "notes": ranking.notes,
    }


def _score(entry: Ranked, regression: bool) -> str:
    form, value = (".4g", -entry.score) if regression else (".2f", entry.score)
    return f"{value:{form}}" + (f" ± {entry.deviation:{form}}" if entry.seeds > 1 else "")


def _test_scores(entry: Ranked) -> dict[str, float]:
    return _mean_scores([lead_scores(run.evaluations[-1]) for run in entry.runs], entry.runs[0])


def _mean_scores(of_runs: list[Cases], run: Run) -> dict[str, float]:
    """The mean over clients, seeds and folds, of every test context."""
    by_case: dict[str, list[float]] = {}
    for cases in of_runs:
        for case, scores in cases.items():
            if not case.startswith("validation") and any(score is not None for score in scores):
                by_case.setdefault(case, []).append((1 if run.task == "regression" else 100) * mean_known(scores))
    return {case: statistics.fmean(values) for case, values in by_case.items()}


def _tests(entry: Ranked) -> str:
    """In words, with what a constant answer scores there."""
    unit = "" if entry.runs[0].task == "regression" else " %"
    constant = _mean_scores([run.notes["constant"] for run in entry.runs], entry.runs[0])
    return ", ".join(
        f"{case} {value:.4g}{unit}" + (f" (a constant answer {constant[case]:.4g}{unit})" if case in constant else "")
        for case, value in _test_scores(entry).items()
    )


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def best_experiment(ranking: Ranking, table: dict[str, Any], name: str) -> dict[str, Any]:
    """The experiment file of the search with the winner's settings in place of its algorithms.

    table: what the file says, as `read_table` gives it.
    """
    asked = ranking.best.runs[0].asked["algorithm"]
    entries = table["algorithm"] if isinstance(table["algorithm"], list) else [table["algorithm"]]
    same = [entry for entry in entries if entry["name"] == asked["name"]]
    entry = next((entry for entry in same if entry.get("label") == ranking.best.method), same[0])
    own = {key: value for key, value in asked.items() if key not in ("name", "label")}
    winner = {"name": asked["name"], "label": ranking.best.method, **own}
    winner |= {part: entry[part] for part in ("data", "contexts", "model", "training") if part in entry}
    return {**{key: value for key, value in table.items() if key != "search"}, "name": name, "algorithm": [winner]}
