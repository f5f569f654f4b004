"""A published table from end to end, at a tiny size: search, clients left out, fresh seeds, every rule's table."""

import json
from pathlib import Path

import pytest

from perinvfl.cli import call
from perinvfl.experiment import Effort, read_experiment
from perinvfl.records import read_packed
from perinvfl.reproduce import CHOSEN, LEFT_OUT, SEARCH, Published, read_published, reproduce
from perinvfl.select import RULES

FILE = """
name = "small"
[data]
benchmark = "rc_mnist"
train_per_client = 60
test_per_client = 40
holdout = 20
[model]
hidden = [8]
[training]
rounds = 4
evaluate_every = 2
[[algorithm]]
name = "fedavg"
[[algorithm]]
name = "perinvfl"
personal_optimizer = "adam"
[[algorithm]]
name = "fedavg"
label = "Shape only"
data.grayscale = true
"""
EFFORT = Effort(trials=3, finalists=2, seeds=(101, 102))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Published, list[str]]:
    folder = tmp_path_factory.mktemp("published")
    (folder / "small.toml").write_text(FILE)
    said: list[str] = []
    return (
        folder,
        reproduce(read_experiment(folder / "small.toml"), folder / "out", EFFORT, together=64, say=said.append),
        said,
    )


def test_every_method_gets_the_same(made: tuple[Path, Published, list[str]]) -> None:
    folder, published, _ = made
    assert len(read_packed(folder / "out" / SEARCH)) == 3 * 3
    assert len(read_packed(folder / "out" / LEFT_OUT)) == 3 * 2 * 4  # methods, finalists, clients
    for method in ("FedAvg", "PerInvFL", "Shape only"):
        for rule in RULES:
            choice = published.choices(rule)[method]
            fresh = published.runs_of(method, choice.setting)
            assert [run.start["asked"]["seed"] for run in fresh] == [101, 102]
            assert published.runs_of(method, choice.last_setting)


def test_left_out_runs_hold_no_test_result(made: tuple[Path, Published, list[str]]) -> None:
    _, published, _ = made
    for run in published.left_out:
        assert run.start["clients"] == 3
        for event in run.evaluations:
            assert set(event["global"]) == {"left-out"}


def test_what_is_there_is_not_made_again(made: tuple[Path, Published, list[str]]) -> None:
    folder, published, _ = made
    said: list[str] = []
    again = reproduce(read_experiment(folder / "small.toml"), folder / "out", EFFORT, together=64, say=said.append)
    assert len(said) == 3 and not any("done in" in line for line in said)
    assert [run.events for run in again.chosen] == [run.events for run in published.chosen]


@pytest.mark.parametrize("rule", RULES)
def test_the_table_of_each_rule(
    rule: str, made: tuple[Path, Published, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, published, _ = made
    assert call(["table", str(folder / "out"), "--rule", rule, "--format", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert (table["benchmark"], table["rule"], table["seeds"]) == ("rc_mnist", rule, 2)
    methods = [row["method"] for row in table["rows"]]
    assert methods == ["Constant", "FedAvg", "FedAvg, paper", "PerInvFL", "PerInvFL, paper", "Shape only"]
    row = table["rows"][3]
    choice = published.choices(rule)["PerInvFL"]
    assert row["round"] == choice.round
    runs = published.runs_of("PerInvFL", choice.setting)
    events = [event for run in runs for event in run.evaluations if event["round"] == choice.round]
    expected = [sum(event["personal"]["0.1"]) / 4 for event in events]
    assert row["cases"]["0.1"]["mean"] == pytest.approx(100 * sum(expected) / len(expected))
    assert row["paper_average"] == pytest.approx(52.796)


def test_the_committed_tables_are_there() -> None:
    for name in ("rc_mnist", "rc_fmnist"):
        published = read_published(Path(__file__).parent.parent / "results" / name)
        assert len(published.search) == 12 * 48
        for rule in ("source", "oracle"):
            for method, choice in published.choices(rule).items():
                assert len(published.runs_of(method, choice.setting)) == 5
                assert len(published.runs_of(method, choice.last_setting)) == 5
    assert (Path(__file__).parent.parent / "results" / "rc_mnist" / CHOSEN).exists()
