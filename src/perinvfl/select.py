"""Selection rules: which setting, and which round, a person would have taken, given what they may look at.

A rule never sees a run. It sees a `View` made for it, which holds nothing but what the rule may know; that is how a
rule for people without test data cannot be influenced by test results.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from perinvfl.errors import UserError
from perinvfl.records import Event, Run, mean_known


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
    # Of one evaluation and the names of the shifted test contexts; None where there is nothing this rule may look at.
    score: Callable[[Event, Sequence[str]], float | None]
    on_fresh_seeds: bool = False  # looks at the runs with fresh seeds, and not at the search alone


def held_out_accuracy(event: Event, spectrum: Sequence[str]) -> float | None:
    """Accuracy on data held out from the clients' own training contexts."""
    return _mean(_lead(event), ["validation"])


def left_out_accuracy(event: Event, spectrum: Sequence[str]) -> float | None:
    """Accuracy on the training contexts of the client left out."""
    return _mean(_lead(event), ["left-out"])


def worst_inferred_accuracy(event: Event, spectrum: Sequence[str]) -> float | None:
    """The worse of two accuracies on the clients' own held-out data: where a reference model is right, and where wrong.

    Needs no test data. At any strength of the shortcut a model's accuracy lies between the two.
    """
    cases = [_lead(event)[case] for case in ("validation right", "validation wrong") if case in _lead(event)]
    known = [[value for value in values if value is not None] for values in cases]  # a client may have none wrong
    return min(fmean(values) for values in known) if known and all(known) else None


def worst_test_accuracy(event: Event, spectrum: Sequence[str]) -> float | None:
    """The worst accuracy over the shifted test contexts; class-balanced where one class is rare and a constant wins.

    The mean over them would prefer a model that reads the colour backwards: 90 % at p = 0.1, though 50 % at p = 0.5.
    """
    if "balanced" in event:
        return min((event["balanced"][case] for case in spectrum if case in event["balanced"]), default=None)
    cases = [_lead(event)[case] for case in spectrum if case in _lead(event) and case != "left-out"]
    return min(mean_known(values) for values in cases) if cases else None


RULES = {
    rule.name: rule
    for rule in (
        Rule("source", "held-out data of the clients' own training contexts", held_out_accuracy),
        Rule("leave-one-client-out", "train on the other clients, look at this one's contexts", left_out_accuracy),
        Rule(
            "worst-inferred-context",
            "held-out data of the clients' own training contexts, the worse of what a reference model gets right and "
            "what it gets wrong",
            worst_inferred_accuracy,
            on_fresh_seeds=True,
        ),
        Rule(
            "oracle",
            "the worst accuracy over the shifted test contexts: what nobody can know beforehand",
            worst_test_accuracy,
            on_fresh_seeds=True,
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
            score = rule.score(event, run.start["spectrum"])
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
    found = [mean_known(cases[name]) for name in names if name in cases]
    return fmean(found) if found else None
