"""Selection rules see what they may see and nothing else."""

import copy
import random
from pathlib import Path

import pytest

from perinvfl.errors import UserError
from perinvfl.results.selection import RULES, Choice, choose, rule_named, view
from perinvfl.runs.records import Run


def run(events: list[dict[str, object]], broken: bool = False) -> Run:
    end: dict[str, object] = {"event": "broken" if broken else "end", "round": 99}
    return Run(Path("run"), [{"event": "start", "task": "binary", "spectrum": ["0.1", "0.9"]}, *events, end])


def evaluation(round: int, validation: float, tests: dict[str, float]) -> dict[str, object]:
    cases = {"validation": [validation], **{case: [value] for case, value in tests.items()}}
    return {"event": "evaluation", "round": round, "personal": cases, "global": {"validation": [0.0], "0.1": [0.0]}}


def search(seed: int) -> list[Run]:
    draw = random.Random(seed).random
    return [run([evaluation(t, draw(), {"0.1": draw(), "0.9": draw()}) for t in (10, 20, 30)]) for _ in range(12)]


def judged(seed: int) -> list[Run]:
    """A search in which held-out data was sorted by a reference model, at two clients."""
    draw = random.Random(seed).random
    return [
        run([inferred(t, [draw(), draw()], [draw(), draw()], {"0.1": draw(), "0.9": draw()}) for t in (10, 20, 30)])
        for _ in range(12)
    ]


def inferred(
    round: int, right: list[float | None], wrong: list[float | None], tests: dict[str, float]
) -> dict[str, object]:
    event = evaluation(round, 0.5, tests)
    for kind in ("personal", "global"):
        cases = event[kind]
        assert isinstance(cases, dict)
        cases |= {"validation right": right, "validation wrong": wrong}
    return event


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
                for case in set(event[kind]) - {"validation", "validation right", "validation wrong"}:
                    event[kind][case] = [draw() for _ in event[kind][case]]
    return changed


def test_source_cannot_be_influenced_by_test_results() -> None:
    for seed in range(20):
        runs = search(seed)
        assert chosen("source", with_other_tests(runs, seed + 100)) == chosen("source", runs)


def test_the_worst_inferred_context_cannot_be_influenced_by_test_results() -> None:
    rule = "worst-inferred-context"
    for seed in range(20):
        runs = judged(seed)
        other = with_other_tests(runs, seed + 100)
        assert chosen(rule, other) == chosen(rule, runs)
        for one in other:  # nor by the names of the test contexts, nor by there being any
            one.start["spectrum"] = []
            for event in one.evaluations:
                event["balanced"] = {"0.1": random.Random(seed).random()}
                for kind in ("personal", "global"):
                    event[kind] = {case: row for case, row in event[kind].items() if case.startswith("validation")}
        assert chosen(rule, other) == chosen(rule, runs)
    assert len({chosen(rule, judged(seed)).setting for seed in range(20)}) > 3  # it does look at something


def test_the_worst_inferred_context_is_the_worse_of_the_means_over_clients() -> None:
    rule = RULES["worst-inferred-context"]

    def score(right: list[float | None], wrong: list[float | None]) -> float | None:
        return rule.score(inferred(10, right, wrong, {"0.1": 0.0}), ["0.1"])

    assert score([0.9, 0.7], [0.2, 0.4]) == pytest.approx(0.3)
    assert score([0.1, 0.3], [0.9, 0.8]) == pytest.approx(0.2)
    assert score([0.9, 0.7], [None, 0.4]) == pytest.approx(0.4)  # the first client has no sample that was wrong
    assert score([0.9, None], [None, 0.4]) == pytest.approx(0.4)
    assert score([0.9, 0.7], [None, None]) is None  # nobody has: nothing to be judged by
    assert rule.score(evaluation(10, 0.5, {"0.1": 0.9}), ["0.1"]) is None


def test_classes_that_count_alike_are_averaged_within_a_side() -> None:
    rule = RULES["worst-inferred-context"]

    def score(common_right: float, rare_right: float | None, common_wrong: float, rare_wrong: float) -> float | None:
        event = evaluation(10, 0.5, {"0.1": 0.0})
        cases = {"validation right, class 0": common_right, "validation right, class 1": rare_right}
        cases |= {"validation wrong, class 0": common_wrong, "validation wrong, class 1": rare_wrong}
        event["personal"] = {case: [value, None] for case, value in cases.items()}  # the second client has none of them
        return rule.score(event, ["0.1"])

    assert score(1.0, 0.0, 1.0, 0.0) == pytest.approx(0.5)  # a constant, however common what it says
    assert score(0.9, 0.7, 0.6, 0.8) == pytest.approx(0.7)
    assert score(0.4, 0.2, 0.6, 0.8) == pytest.approx(0.3)
    assert score(0.9, None, 0.9, 0.95) == pytest.approx(0.9)  # nobody has a rare one that was right


def test_the_worst_inferred_context_judges_the_personal_models_where_there_are_any() -> None:
    event = inferred(10, [0.9], [0.6], {})
    event["global"] = {"validation right": [0.1], "validation wrong": [0.1]}
    assert RULES["worst-inferred-context"].score(event, []) == pytest.approx(0.6)
    del event["personal"]
    assert RULES["worst-inferred-context"].score(event, []) == pytest.approx(0.1)


def test_the_oracle_looks_at_the_spectrum_alone() -> None:
    """Neither at test contexts beyond it nor at the held-out data, however it was sorted."""
    score = RULES["oracle"].score
    event = inferred(10, [0.0, 0.0], [0.0, None], {"0.1": 0.6, "0.9": 0.8, "1": 0.1})
    assert score(event, ["0.1", "0.9"]) == pytest.approx(0.6)
    assert score(event, ["0.9"]) == pytest.approx(0.8)
    assert score(event, []) is None


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


def test_each_run_is_stopped_at_its_own_best_round_where_a_rule_watches_it() -> None:
    curves = {0: ([0.2, 0.9, 0.1], [0.8, 0.1, 0.3]), 1: ([0.6, 0.7, 0.5], [0.6, 0.7, 0.65])}
    views = []
    for setting, of_runs in curves.items():
        runs = [run([evaluation(10 * (k + 1), v, {"0.1": v}) for k, v in enumerate(curve)]) for curve in of_runs]
        seen = view(RULES["oracle"], setting, runs)
        assert seen is not None
        views.append(seen)
    together, apart = choose(views), choose(views, own_rounds=True)
    assert (together.setting, together.round, together.rounds(2)) == (1, 20, (20, 20))
    assert together.score == pytest.approx(0.7)
    assert (apart.setting, apart.rounds(2)) == (0, (20, 10)) and apart.score == pytest.approx(0.85)
    assert apart.last_setting == together.last_setting == 1  # by last rounds there is nothing to stop


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
