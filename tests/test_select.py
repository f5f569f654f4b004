"""Selection rules see what they may see and nothing else."""

import copy
import random
from pathlib import Path

import pytest

from perinvfl.errors import UserError
from perinvfl.records import Run
from perinvfl.select import RULES, Choice, choose, rule_named, view


def run(events: list[dict[str, object]], broken: bool = False) -> Run:
    end: dict[str, object] = {"event": "broken" if broken else "end", "round": 99}
    return Run(Path("run"), [{"event": "start", "spectrum": ["0.1", "0.9"]}, *events, end])


def evaluation(round: int, validation: float, tests: dict[str, float]) -> dict[str, object]:
    cases = {"validation": [validation], **{case: [value] for case, value in tests.items()}}
    return {"event": "evaluation", "round": round, "personal": cases, "global": {"validation": [0.0], "0.1": [0.0]}}


def search(seed: int) -> list[Run]:
    draw = random.Random(seed).random
    return [run([evaluation(t, draw(), {"0.1": draw(), "0.9": draw()}) for t in (10, 20, 30)]) for _ in range(12)]


def chosen(rule: str, runs: list[Run]) -> Choice:
    views = [view(RULES[rule], number, [one]) for number, one in enumerate(runs)]
    return choose([seen for seen in views if seen is not None])


def with_other_tests(runs: list[Run], seed: int) -> list[Run]:
    """The same runs with every test result replaced."""
    draw = random.Random(seed).random
    changed = copy.deepcopy(runs)
    for one in changed:
        for event in one.evaluations:
            for kind in ("personal", "global"):
                for case in set(event[kind]) - {"validation"}:
                    event[kind][case] = [draw() for _ in event[kind][case]]
    return changed


def test_source_cannot_be_influenced_by_test_results() -> None:
    for seed in range(20):
        runs = search(seed)
        assert chosen("source", with_other_tests(runs, seed + 100)) == chosen("source", runs)


def test_the_oracle_is_influenced_by_them_and_by_nothing_else() -> None:
    runs = search(0)
    assert chosen("oracle", with_other_tests(runs, 7)) != chosen("oracle", runs)
    other = copy.deepcopy(runs)
    for one in other:
        for event in one.evaluations:
            event["personal"]["validation"] = [0.5]
    assert chosen("oracle", other) == chosen("oracle", runs)


def test_choose_takes_the_best_round_and_the_best_last_round() -> None:
    runs = [
        run([evaluation(10, 0.9, {"0.1": 0.1}), evaluation(20, 0.2, {"0.1": 0.8})]),
        run([evaluation(10, 0.5, {"0.1": 0.7}), evaluation(20, 0.6, {"0.1": 0.3})]),
    ]
    assert chosen("source", runs) == Choice(setting=0, round=10, score=0.9, last_setting=1, last_score=0.6)
    assert chosen("oracle", runs) == Choice(setting=0, round=20, score=0.8, last_setting=0, last_score=0.8)


def test_folds_count_as_one_setting() -> None:
    folds = [run([{"event": "evaluation", "round": 10, "global": {"left-out": [value]}}]) for value in (0.2, 0.6)]
    seen = view(RULES["leave-one-client-out"], 3, folds)
    assert seen is not None and seen.scores == {10: pytest.approx(0.4)}
    assert view(RULES["source"], 3, folds) is None
    assert view(RULES["oracle"], 3, folds) is None


def test_a_broken_run_cannot_be_chosen() -> None:
    assert view(RULES["source"], 0, [run([evaluation(10, 1.0, {"0.1": 1.0})], broken=True)]) is None
    with pytest.raises(UserError, match="No record"):
        choose([])


def test_an_unknown_rule_is_one_sentence() -> None:
    with pytest.raises(UserError, match="rules are source, leave-one-client-out, worst-inferred-context, oracle"):
        rule_named("best")
