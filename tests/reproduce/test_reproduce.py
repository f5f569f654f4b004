"""What `python -m perinvfl.reproduce` makes: the same for every method, and nothing twice."""

from pathlib import Path

import pytest

from perinvfl.reproduce import stages
from perinvfl.reproduce.command import main
from perinvfl.results.search_records import LEFT_OUT, LONGER, SEARCH, SearchRecords, read_published, setting_of
from perinvfl.results.selection import RULES
from perinvfl.runs.experiment import Experiment, read_experiment
from perinvfl.runs.records import read_packed
from tests.reproduce.tables import EFFORT, RESULTS, Made


def test_every_method_gets_the_same(made: Made) -> None:
    folder, published = made
    assert len(read_packed(folder / "out" / SEARCH)) == 3 * 3
    assert len(read_packed(folder / "out" / LEFT_OUT)) == 3 * 2 * 4  # methods, finalists, clients
    for method in ("FedAvg", "PerInvFL", "Shape only"):
        for rule in published.rules():
            choice = published.choices(rule)[method]
            fresh = published.runs_of(method, choice.setting)
            assert [run.seed for run in fresh] == [101, 102]
            assert published.runs_of(method, choice.last_setting)


def test_the_oracle_alone_sees_the_longer_runs(made: Made) -> None:
    folder, published = made
    longer = read_packed(folder / "out" / LONGER)
    assert [(run.method, run.seed) for run in longer] == [
        (method, seed) for method in ("FedAvg", "PerInvFL", "Shape only") for seed in (101, 102)
    ]
    ids = {run.id for run in longer}
    for run in longer:
        assert run.evaluations[-1]["round"] == 6 and setting_of(run) >= 3  # counted on from the three searched
        shorter = published.runs_of(run.method, setting_of(run) - 3)
        changed = {key for key in run.asked if run.asked[key] != shorter[0].asked[key]}
        assert changed <= {"training", "algorithm", "seed"}
    for rule in published.rules():
        assert (ids <= {run.id for run in published.looked_at(RULES[rule])}) == (rule == "oracle")
    assert {run.id for run in read_published(folder / "out").chosen} >= ids


def test_rules_are_those_that_find_something(made: Made) -> None:
    _, published = made
    assert published.rules() == ["source", "leave-one-client-out", "oracle"]  # no context was inferred here
    assert SearchRecords(published.search, [], []).rules() == ["source", "oracle"]


def test_left_out_runs_hold_no_test_result(made: Made) -> None:
    _, published = made
    for run in published.left_out:
        assert run.clients == 3
        for event in run.evaluations:
            assert set(event["global"]) == {"left-out"}


def test_what_is_there_is_not_made_again(made: Made) -> None:
    folder, published = made
    said: list[str] = []
    again = stages.reproduce(
        read_experiment(folder / "small.toml"), folder / "out", EFFORT, together=64, say=said.append
    )
    assert len(said) == 4 and not any("done in" in line for line in said)
    assert [run.events for run in again.chosen] == [run.events for run in published.chosen]


def test_one_row_of_a_table_is_the_same_as_among_the_others(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, published = made
    asked = [str(folder / "small.toml"), "--out", str(tmp_path), "--trials", "3", "--finalists", "2", "--seeds", "101"]
    assert main([*asked, "--only", "PerInvFL"]) == 0
    alone = read_published(tmp_path)
    assert alone.methods() == ["PerInvFL"]
    ids = {run.id for run in published.search if run.method == "PerInvFL"}
    assert {run.id for run in alone.search} == ids
    capsys.readouterr()
    assert main([*asked, "--only", "Perinvfl"]) == 2
    assert 'error: --only "Perinvfl": small has "FedAvg", "PerInvFL", "Shape only".' in capsys.readouterr().err


@pytest.mark.parametrize("name", ["waterbird", "beyond/unrotated", "rc_fmnist"])
def test_every_published_run_is_found_and_none_is_made_again(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(experiment: Experiment, *rest: object) -> list[Path]:
        raise AssertionError(f"{[trial.title for trial in experiment.trials]} would be made again")

    monkeypatch.setattr(stages, "train", refuse)
    files = {path: path.read_bytes() for path in (RESULTS / name).glob("*.xz")}
    assert main([str(RESULTS.parent / "experiments" / f"{name}.toml"), "--out", str(RESULTS / name)]) == 0
    printed = capsys.readouterr().out
    for path in files:
        runs = len(read_packed(path))
        assert f"{path}: {runs} runs, {runs} of them there already" in printed
    assert files == {path: path.read_bytes() for path in (RESULTS / name).glob("*.xz")}
