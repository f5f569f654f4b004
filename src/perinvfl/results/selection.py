"""Selection rules: which setting, and which round, a person would have taken, given what they may look at.

A rule never sees a run. It sees a `Scores` made for it, which holds nothing but what the rule may know; that is how a
rule for people without test data cannot be influenced by test results.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from perinvfl.errors import UserError
from perinvfl.runs.records import Cases, Event, Run, any_known, lead_scores, mean_known

LEAVE_ONE_CLIENT_OUT = "leave-one-client-out"
ORACLE = "oracle"  # the last of the rules, and the only one that knows test results


@dataclass(frozen=True)
class Scores:
    """One setting as a rule sees it: a score at each evaluated round."""

    setting: int  # which setting, by its place in the search
    scores: dict[int, float]  # round -> score, the mean over the setting's runs; larger is better
    of_each: tuple[dict[int, float], ...]  # the same of each run

    @property
    def round(self) -> int:
        """The best round, one for all runs; the first of equals."""
        return _first_best(self.scores)

    @property
    def best(self) -> float:
        return self.scores[self.round]

    @property
    def own_rounds(self) -> tuple[int, ...]:
        """The best round of each run."""
        return tuple(map(_first_best, self.of_each))

    @property
    def own_best(self) -> float:
        """The mean score of runs that are stopped each at its own best round."""
        return fmean(scores[round] for scores, round in zip(self.of_each, self.own_rounds, strict=True))


@dataclass(frozen=True)
class Choice:
    setting: int
    round: int  # the best round of the chosen setting, one for all of its runs
    score: float
    last_setting: int  # the setting to take by someone who always takes the last round
    last_score: float
    own_rounds: tuple[int, ...] = ()  # where each run is stopped at its own best round

    def rounds(self, runs: int) -> tuple[int, ...]:
        """At which round each of so many fresh runs is taken."""
        return self.own_rounds or (self.round,) * runs


@dataclass(frozen=True)
class Rule:
    name: str
    doc: str
    # Of one evaluation and the names of the shifted test contexts; None where there is nothing this rule may look at.
    score: Callable[[Event, Sequence[str]], float | None]
    on_fresh_seeds: bool = False  # looks at the runs with fresh seeds, and not at the search alone
    own_rounds: bool = False  # stops each of those at its own best round; else a round is a setting, one for all seeds


def held_out_accuracy(event: Event, spectrum: Sequence[str]) -> float | None:
    """Accuracy on data held out from the clients' own training contexts."""
    return _mean(lead_scores(event), ["validation"])


def left_out_accuracy(event: Event, spectrum: Sequence[str]) -> float | None:
    """Accuracy on the training contexts of the client left out."""
    return _mean(lead_scores(event), ["left-out"])


def worst_inferred_accuracy(event: Event, spectrum: Sequence[str]) -> float | None:
    """The worse of two accuracies on the clients' own held-out data: where a reference model is right, and where wrong.

    Needs no test data. At any strength of the shortcut a model's accuracy lies between the two. Where classes count
    alike there are cases for each, and an accuracy is the mean over them.
    """
    of_sides = []
    for side in ("validation right", "validation wrong"):
        cases = [values for name, values in lead_scores(event).items() if name.startswith(side)]
        known = [[value for value in values if value is not None] for values in cases]  # a client may have none wrong
        of_sides.append([fmean(values) for values in known if values])
    return min(map(fmean, of_sides)) if all(of_sides) else None


def worst_test_accuracy(event: Event, spectrum: Sequence[str]) -> float | None:
    """The worst accuracy over the shifted test contexts; class-balanced where one class is rare and a constant wins.

    The mean over them would prefer a model that reads the colour backwards: 90 % at p = 0.1, though 50 % at p = 0.5.
    """
    if "balanced" in event:
        known = [event["balanced"].get(case) for case in spectrum]
        return min((score for score in known if score is not None), default=None)
    scores = lead_scores(event)
    cases = [scores[case] for case in spectrum if case in scores and case != "left-out"]
    return min(map(mean_known, cases)) if cases and all(map(any_known, cases)) else None


RULES = {
    rule.name: rule
    for rule in (
        Rule("source", "held-out data of the clients' own training contexts", held_out_accuracy),
        Rule(LEAVE_ONE_CLIENT_OUT, "train on the other clients, look at this one's contexts", left_out_accuracy),
        Rule(
            "worst-inferred-context",
            "held-out data of the clients' own training contexts, the worse of what a reference model gets right and "
            "what it gets wrong",
            worst_inferred_accuracy,
            on_fresh_seeds=True,
        ),
        Rule(
            ORACLE,
            "the worst accuracy over the shifted test contexts (class-balanced where there are groups): "
            "what nobody can know beforehand",
            worst_test_accuracy,
            on_fresh_seeds=True,
            own_rounds=True,
        ),
    )
}


def rule_named(name: str) -> Rule:
    if name not in RULES:
        raise UserError(f'--rule "{name}" is not known; rules are {", ".join(RULES)}.')
    return RULES[name]


def view(rule: Rule, setting: int, runs: Sequence[Run]) -> Scores | None:
    """What the rule may see of one setting: its score at each round, the mean over the setting's runs (folds).

    A setting of which a run broke is not seen at all.
    """
    if any(run.broken is not None for run in runs):
        return None
    of_each = []
    for run in runs:
        by_round = {event["round"]: score_of(rule, event, run.task, run.spectrum) for event in run.evaluations}
        of_each.append({round: score for round, score in by_round.items() if score is not None})
    common = [round for round in of_each[0] if all(round in scores for scores in of_each)]
    scores = {round: fmean([scores[round] for scores in of_each]) for round in common}
    return Scores(setting, scores, tuple(of_each)) if scores else None


def score_of(rule: Rule, event: Event, task: str, spectrum: Sequence[str]) -> float | None:
    """Of one evaluation, larger is better; None where there is nothing that the rule may look at."""
    return rule.score(_larger_is_better(event, task), spectrum)


def _larger_is_better(event: Event, task: str) -> Event:
    """The errors of a regression as negative numbers."""
    if task != "regression":
        return event

    def turned(cases: Cases) -> Cases:
        return {case: [None if score is None else -score for score in scores] for case, scores in cases.items()}

    return event | {kind: turned(event[kind]) for kind in ("personal", "global") if kind in event}


def choose(views: Sequence[Scores], own_rounds: bool = False) -> Choice:
    """The best setting at its best round, or at the own best round of each run, and the best setting at its last round.

    The first of equals.
    """
    if not views:
        raise UserError("No record here holds what this rule looks at.")
    last = max(views, key=lambda seen: seen.scores[max(seen.scores)])
    best = max(views, key=lambda seen: seen.own_best if own_rounds else seen.best)
    return Choice(
        best.setting,
        best.round,
        best.own_best if own_rounds else best.best,
        last.setting,
        last.scores[max(last.scores)],
        best.own_rounds if own_rounds else (),
    )


def _first_best(scores: dict[int, float]) -> int:
    return max(scores, key=lambda round: scores[round])


def _mean(cases: Cases, names: list[str]) -> float | None:
    found = [mean_known(cases[name]) for name in names if any_known(cases.get(name, ()))]
    return fmean(found) if found else None
