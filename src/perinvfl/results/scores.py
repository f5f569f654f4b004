"""From evaluations to scores: by test case, by group, at the worst client; class-balanced where one class is rare."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perinvfl.errors import UserError
from perinvfl.learning.groups import (
    GROUP_SCORES,
    Counts,
    Score,
    balanced_accuracy,
    constant_hits,
    pooled,
    worst_group_accuracy,
)
from perinvfl.runs.records import Cases, Event, Run, any_known, evaluations_at, lead_scores, mean_known

GroupCases = dict[str, Counts]  # test case -> counts of each client and group


@dataclass(frozen=True)
class Measured:
    """What the runs of one setting scored, one entry a run."""

    accuracies: list[Cases]  # of a regression the errors
    right: list[GroupCases]  # empty where tests have no groups, as is the next
    there: list[GroupCases]
    errors: bool  # smaller is better

    @property
    def factor(self) -> float:
        """Accuracies are told in percent; the errors of a regression as they are."""
        return 1.0 if self.errors else 100.0

    def by_case(self, score: Score) -> dict[str, tuple[float, float]]:
        """Mean and deviation over seeds of each case."""
        found = {}
        for case in self.accuracies[0]:
            if case.startswith("validation"):
                continue  # held-out data is for rules; a client may have none that a reference model gets wrong
            if not all(any_known(of_seed.get(case, ())) for of_seed in self.accuracies):
                continue  # beyond the spectrum: no client with a sample of it was there
            if score == "accuracy":
                by_seed = [self.factor * mean_known(of_seed[case]) for of_seed in self.accuracies]
            elif case in self.there[0]:
                by_seed = [100 * GROUP_SCORES[score](r[case], n[case]) for r, n in self._pairs]
            else:
                continue  # no groups were counted in it
            found[case] = (statistics.fmean(by_seed), statistics.pstdev(by_seed))
        return found

    def by_group(self, spectrum: Sequence[str]) -> dict[str, float] | None:
        """Over the spectrum, and over the same contexts with all birds left over; mean over seeds, in percent."""
        if not self.there:
            return None
        columns = {}
        left_over = tuple(case for case in self.there[0] if case not in spectrum)
        for prefix, cases in (("", spectrum), ("Left over, ", left_over)):
            if not cases:
                continue
            if prefix:  # the plain average over the spectrum has its own column
                columns["Left over"] = statistics.fmean(
                    100 * mean_known(of_seed[case]) for of_seed in self.accuracies for case in cases
                )
            balanced = [balanced_accuracy(r[case], n[case]) for r, n in self._pairs for case in cases]
            # A group may hold one bird of a client in one context: contexts are put together before the worst is taken.
            worst = [
                worst_group_accuracy(pooled([r[c] for c in cases]), pooled([n[c] for c in cases]))
                for r, n in self._pairs
            ]
            columns[f"{prefix}balanced".capitalize()] = 100 * statistics.fmean(balanced)
            columns[f"{prefix}worst group".capitalize()] = 100 * statistics.fmean(worst)
        return columns

    def worst_client(self, spectrum: Sequence[str]) -> float:
        """The mean over the spectrum at the client that fares worst; mean over seeds."""
        worst = max if self.errors else min
        by_client = [
            [
                mean_known(scores)
                for scores in zip(*(of_seed[case] for case in spectrum), strict=True)
                if any(score is not None for score in scores)
            ]
            for of_seed in self.accuracies
        ]
        return self.factor * statistics.fmean(worst(clients) for clients in by_client)

    @property
    def _pairs(self) -> list[tuple[GroupCases, GroupCases]]:
        return list(zip(self.right, self.there, strict=True))


def measured_at(runs: list[Run], rounds: Sequence[int]) -> Measured:
    """Of the models that clients predict with, at the round given for each run; the last where none are given."""
    events = evaluations_at(runs, rounds)
    grouped = all(map(has_groups, runs))
    right = [event.get("personal groups") or event["global groups"] for event in events] if grouped else []
    there = [run.notes["groups"]["counts"] for run in runs] if grouped else []
    pairs = [_told(*pair) for pair in zip(right, there, strict=True)]
    right, there = [hits for hits, _ in pairs], [counts for _, counts in pairs]
    return Measured([lead_scores(event) for event in events], right, there, runs[0].task == "regression")


def _told(right: GroupCases, there: GroupCases) -> tuple[GroupCases, GroupCases]:
    """Without the clients of which nothing is told: sites that were away."""
    hits: GroupCases = {case: [row for row in rows if row] for case, rows in right.items()}
    counts = {
        case: [row for row, told in zip(rows, right[case], strict=True) if told] if case in right else rows
        for case, rows in there.items()
    }
    return hits, counts


def constant_of(runs: list[Run]) -> Measured:
    """Of the constant predictor on the data of each seed."""
    drawn = {run.seed: run.notes for run in runs}
    groups = [notes["groups"] for notes in drawn.values() if "groups" in notes]
    right = [
        {case: constant_hits(counts, group["majority"]) for case, counts in group["counts"].items()} for group in groups
    ]
    there = [group["counts"] for group in groups]
    return Measured([notes["constant"] for notes in drawn.values()], right, there, runs[0].task == "regression")


def global_average(runs: list[Run], spectrum: Sequence[str], rounds: Sequence[int], score: Score) -> float | None:
    """Of the global model over the spectrum, in percent, where there are personal models beside it."""
    events = evaluations_at(runs, rounds)
    if not all("personal" in event and "global" in event for event in events):
        return None
    if score != "accuracy":
        there = [run.notes["groups"]["counts"] for run in runs]
        pairs = [_told(event["global groups"], counts) for event, counts in zip(events, there, strict=True)]
        return 100 * statistics.fmean(GROUP_SCORES[score](r[case], n[case]) for r, n in pairs for case in spectrum)
    rows = [event["global"][case] for event in events for case in spectrum]
    return 100 * statistics.fmean(map(mean_known, rows)) if all(map(any_known, rows)) else None


def check_score(runs: list[Run], score: Score) -> None:
    if score != "accuracy" and not all(map(has_groups, runs)):
        raise UserError(f'--score {score}: not all of these runs have groups; "accuracy" is what they hold.')


def has_groups(run: Run) -> bool:
    return "groups" in run.notes


def class_balanced(run: Run) -> Run:
    """The same run with every accuracy class-balanced, where its tests have groups.

    What to show where one class is rare, and a constant answer would look best by plain accuracy.
    """
    if not has_groups(run):
        return run
    there, majority = (run.notes["groups"][key] for key in ("counts", "majority"))

    def by_client(right: dict[str, Counts]) -> Cases:
        return {
            case: [
                balanced_accuracy([hits], [counts]) if hits else None
                for hits, counts in zip(rows, there[case], strict=True)
            ]
            for case, rows in right.items()
        }

    def balanced(event: Event) -> Event:
        changed: dict[str, Any] = {}
        for kind in ("personal", "global"):
            if f"{kind} groups" in event:
                changed[kind] = event[kind] | by_client(event[f"{kind} groups"])
        return event | changed

    constant = by_client({case: constant_hits(counts, majority) for case, counts in there.items()})
    notes = run.notes | {"constant": run.notes["constant"] | constant}
    start, *others = run.events
    shown = [balanced(event) if event["event"] == "evaluation" else event for event in others]
    return dataclasses.replace(run, events=[start | {"notes": notes}, *shown])
