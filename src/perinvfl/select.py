"""Selection rules: which setting, and which round, a person would have taken, given what they may look at.

A rule never sees a run. It sees a `View` made for it, which holds nothing but what the rule may know; that is how a
rule for people without test data cannot be influenced by test results.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from perinvfl.errors import UserError
from perinvfl.records import Event, Run


@dataclass(frozen=True)
class View:
    """One setting as a rule sees it: a score at each evaluated round."""

    setting: int  # which setting, by its place in the search
    scores: dict[int, float]  # round -> score, larger is better


@dataclass(frozen=True)
class Choice:
    setting: int
    round: int  # the best round of the chosen setting
    score: float
    last_setting: int  # the setting to take by someone who always takes the last round
    last_score: float


@dataclass(frozen=True)
class Rule:
    name: str
    doc: str
    score: Callable[[Event], float | None]  # of one evaluation; None where it holds nothing this rule may look at


def held_out_accuracy(event: Event) -> float | None:
    """Accuracy on data held out from the clients' own training contexts."""
    return _mean(_lead(event), ["validation"])


def left_out_accuracy(event: Event) -> float | None:
    """Accuracy on the training contexts of the client left out."""
    return _mean(_lead(event), ["left-out"])


def worst_test_accuracy(event: Event) -> float | None:
    """The worst accuracy over all test contexts; class-balanced where one class is rare and a constant would win.

    The mean over the five shifted ones would prefer a model that reads the colour backwards: 90 % at p = 0.1.
    """
    if "balanced" in event:
        return min((score for case, score in event["balanced"].items() if case != "left-out"), default=None)
    cases = {case: values for case, values in _lead(event).items() if case not in ("validation", "left-out")}
    return min(fmean(values) for values in cases.values()) if cases else None


RULES = {
    rule.name: rule
    for rule in (
        Rule("source", "held-out data of the clients' own training contexts", held_out_accuracy),
        Rule("leave-one-client-out", "train on the other clients, look at this one's contexts", left_out_accuracy),
        Rule(
            "oracle",
            "the worst accuracy over the test contexts (class-balanced where there are groups): "
            "what nobody can know beforehand",
            worst_test_accuracy,
        ),
    )
}


def rule_named(name: str) -> Rule:
    if name not in RULES:
        raise UserError(f'--rule "{name}" is not known; rules are {", ".join(RULES)}.')
    return RULES[name]


def view(rule: Rule, setting: int, runs: Sequence[Run]) -> View | None:
    """What the rule may see of one setting: its score at each round, the mean over the setting's runs (folds).

    A setting of which a run broke is not seen at all.
    """
    if any(run.broken is not None for run in runs):
        return None
    by_round: dict[int, list[float]] = {}
    for run in runs:
        for event in run.evaluations:
            score = rule.score(event)
            if score is not None:
                by_round.setdefault(event["round"], []).append(score)
    scores = {round: fmean(found) for round, found in by_round.items() if len(found) == len(runs)}
    return View(setting, scores) if scores else None


def choose(views: Sequence[View]) -> Choice:
    """The best round of the best setting, and the best setting at its last round; the first of equals."""
    if not views:
        raise UserError("No record here holds what this rule looks at.")
    best = max(((seen, round) for seen in views for round in seen.scores), key=lambda pair: pair[0].scores[pair[1]])
    last = max(views, key=lambda seen: seen.scores[max(seen.scores)])
    return Choice(best[0].setting, best[1], best[0].scores[best[1]], last.setting, last.scores[max(last.scores)])


def _lead(event: Event) -> dict[str, list[float]]:
    """The personal models where there are any, else the global one."""
    return event.get("personal") or event["global"]


def _mean(cases: dict[str, list[float]], names: list[str]) -> float | None:
    found = [fmean(cases[name]) for name in names if name in cases]
    return fmean(found) if found else None
