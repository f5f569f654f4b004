"""The rule that knows no test data: what it may look at, and that test results cannot reach it."""

import copy
import json
import shutil
from pathlib import Path

import pytest

from perinvfl.cli import call
from perinvfl.results.search_records import CHOSEN, SearchRecords, default_rule, read_published, setting_of
from perinvfl.results.selection import RULES, view
from perinvfl.runs.records import pack
from tests.reproduce.tables import RESULTS, Made


def test_the_worst_inferred_context_looks_at_fresh_seeds(judged: Made) -> None:
    _, published = judged
    rule = RULES["worst-inferred-context"]
    assert published.rules() == ["source", "worst-inferred-context", "oracle"] and not published.left_out
    assert published.looked_at(RULES["oracle"]) is published.chosen
    seen = {(run.method, run.setting) for run in published.looked_at(rule)}
    assert seen < {(run.method, run.setting) for run in published.chosen}
    assert published.looked_at(RULES["source"]) is published.search
    choices = published.choices("worst-inferred-context")
    assert list(choices) == ["FedAvg", "Balanced", "Shape only"]
    assert choices["Shape only"] == published.choices("source")["Shape only"]  # which has nothing else to look at
    for method, choice in choices.items():
        assert [run.seed for run in published.runs_of(method, choice.setting)] == [101, 102]
    for run in published.search:
        if run.method == "Balanced":
            assert 1e-4 <= run.asked["algorithm"]["l2"] <= 1e-3
            assert len(run.found["reference"]["wrong"]) == 4


def test_its_choice_does_not_change_with_test_results(judged: Made) -> None:
    _, published = judged
    other = SearchRecords(copy.deepcopy(published.search), [], copy.deepcopy(published.chosen))
    for run in [*other.search, *other.chosen]:
        for event in run.evaluations:
            for kind in ("personal", "global"):
                for case in [case for case in event.get(kind, {}) if not case.startswith("validation")]:
                    event[kind][case] = [1 - value for value in event[kind][case]]
    for rule in ("source", "worst-inferred-context"):
        assert other.choices(rule) == published.choices(rule)


def test_the_oracle_brings_it_no_candidate(judged: Made) -> None:
    """A setting that has fresh seeds because its test results were good is not to be had without test results."""
    _, published = judged
    searched = SearchRecords(published.search, [], [])
    allowed = set()
    for name in ("source", "worst-inferred-context"):
        for method, choice in searched.choices(name).items():
            allowed |= {(method, choice.setting), (method, choice.last_setting)}
    for method in published.methods():
        runs = [run for run in published.search if run.method == method]
        scored = [(view(RULES["worst-inferred-context"], setting_of(run), [run]), setting_of(run)) for run in runs]
        best = sorted((-max(seen.scores.values()), number) for seen, number in scored if seen is not None)
        allowed |= {(method, number) for _, number in best[:2]}  # two finalists, as the file says
    looked_at = published.looked_at(RULES["worst-inferred-context"])
    assert {(run.method, run.setting) for run in looked_at} == allowed


def test_no_published_choice_was_brought_by_the_oracle() -> None:
    published = read_published(RESULTS / "beyond" / "rc_mnist")
    looked_at = {(run.method, run.setting) for run in published.looked_at(RULES["worst-inferred-context"])}
    made = {(run.method, run.setting) for run in published.chosen}
    assert looked_at < made
    for method, choice in published.choices("worst-inferred-context").items():
        assert {(method, choice.setting), (method, choice.last_setting)} <= looked_at


def test_its_table_stands_a_client_with_nothing_wrong(
    judged: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, published = judged
    shutil.copytree(folder / "out", tmp_path / "out")
    fresh = copy.deepcopy(published.chosen)
    for run in fresh:
        for event in run.evaluations:
            for kind in ("personal", "global"):
                if "validation wrong" in event.get(kind, {}):
                    event[kind]["validation wrong"][0] = None
    pack(fresh, tmp_path / "out" / CHOSEN)
    for rule in published.rules():
        assert call(["table", str(tmp_path / "out"), "--rule", rule, "--format", "json"]) == 0
        table = json.loads(capsys.readouterr().out)
        assert table["rule"] == rule
        for row in table["rows"]:
            assert not [case for case in row["cases"] if case.startswith("validation")]


def test_the_honest_rule_is_the_default_where_it_can_judge_every_method(made: Made, judged: Made) -> None:
    assert default_rule(judged.records) == "worst-inferred-context"
    assert default_rule(made.records) == default_rule(judged.records, made.records) == "oracle"
    partly = copy.deepcopy(judged.records)
    for run in partly.chosen:
        if run.method == "FedAvg":
            for event in run.evaluations:
                for kind in ("global", "personal"):
                    event.get(kind, {}).pop("validation wrong", None)
                    event.get(kind, {}).pop("validation right", None)
    assert default_rule(partly) == "oracle"
