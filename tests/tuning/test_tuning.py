"""Searches with Optuna: the same seed gives the same search, stopped or not; what falls behind is given up; and no test
result is looked at."""

import json
from pathlib import Path
from typing import Any

import pytest

from perinvfl.algorithms import PooledERM, Recommended
from perinvfl.cli import call
from perinvfl.core.hyper import search_space
from perinvfl.errors import UserError
from perinvfl.results.ranking import rank
from perinvfl.results.search_records import setting_of
from perinvfl.runs.batches import InThisProcess
from perinvfl.runs.event_log import Event
from perinvfl.runs.experiment import Experiment, read_experiment
from perinvfl.runs.progress import Exchange, Progress
from perinvfl.runs.records import find_runs
from perinvfl.runs.trial import Trial
from perinvfl.tuning.search import Search, rule_for, tune
from tests.commands import called, check_refusal, untimed

SETTINGS = 9
SEED = 4  # of the search: with it, two settings are given up
FILE = """
name = "sites"
seeds = [0, 1]
[data]
benchmark = "file"
path = "sites.csv"
label = "ill"
client = "hospital"
context = "year"
test_contexts = ["2023"]
[model]
hidden = [4]
[training]
rounds = 6
evaluate_every = 2
[[algorithm]]
name = "ditto"
learning_rate = {from = 0.001, to = 1}
optimizer = {one_of = ["sgd", "adam"]}
"""


def write(folder: Path, table: Path, text: str = FILE) -> Path:
    (folder / "sites.csv").write_bytes(b"".join(table.read_bytes().splitlines(keepends=True)[::8]))
    (folder / "sites.toml").write_text(text)
    return folder / "sites.toml"


@pytest.fixture(scope="module")
def file(made_sites: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tuning"), made_sites)


@pytest.fixture(scope="module")
def searched(file: Path) -> Path:
    line = ["sweep", str(file), "--sampler", "optuna", "--trials", str(SETTINGS), "--search-seed", str(SEED), "--quiet"]
    assert call([*line, "--out", str(file.parent / "runs")]) == 0
    return file.parent / "runs/sites-optuna"


def records(folder: Path) -> dict[str, Any]:
    return {path.parent.name: untimed(path) for path in folder.rglob("events.jsonl")}


def tuned(file: Path, out: Path, progress: Progress, trials: int = SETTINGS) -> None:
    experiment = Experiment("sites-optuna", read_experiment(file).trials)
    tune(experiment, Search(trials, SEED, rule_for(experiment, "")), out, progress, InThisProcess())


class StopAfter(Progress):
    """As a kill does, after so many rounds of all runs together."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def round(
        self, trials: list[Trial], rounds_done: int, risk: float | None, exchange: Exchange | None = None
    ) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_a_search_that_was_stopped_ends_like_one_that_was_not(searched: Path, file: Path, tmp_path: Path) -> None:
    for rounds in (3, 8, 25, 14):  # in the first run, between runs of a setting, among those given up
        with pytest.raises(KeyboardInterrupt):
            tuned(file, tmp_path / "sites-optuna", StopAfter(rounds))
    tuned(file, tmp_path / "sites-optuna", Progress())
    assert records(tmp_path / "sites-optuna") == records(searched)


def test_what_falls_behind_is_given_up_and_not_ranked(searched: Path) -> None:
    runs = find_runs(searched)
    given_up = {setting_of(run) for run in runs if run.pruned is not None}
    assert given_up and min(given_up) >= 5  # the first are tried to their end
    for run in runs:
        if run.pruned is not None:
            assert not run.finished and run.evaluations[-1]["round"] == run.pruned["round"] < 6
            assert not (run.folder / "checkpoint.pt").exists()
    ranking = rank(runs)
    assert given_up.isdisjoint(entry.setting for entry in ranking.ranked)
    assert len(ranking.ranked) + len(given_up) == SETTINGS
    assert all(entry.seeds == 2 for entry in ranking.ranked)
    assert any("gave up early (pruned)" in note for note in ranking.notes)


def test_asking_again_does_nothing_and_asking_for_more_goes_on(searched: Path, file: Path, tmp_path: Path) -> None:
    begun: list[str] = []

    class Watch(Progress):
        def started(self, trials: list[Trial], rounds_done: int) -> None:
            begun.append(trials[0].folder)

    before = records(searched)
    tuned(file, searched, Watch())
    assert not begun and records(searched) == before
    tuned(file, tmp_path / "sites-optuna", Watch(), trials=2)
    fewer = list(begun)
    tuned(file, tmp_path / "sites-optuna", Watch(), trials=3)
    assert len(fewer) == 4 and len(begun) == 6 and set(begun) <= set(before)


def test_the_same_table_in_another_folder_is_searched_alike(searched: Path, made_sites: Path, tmp_path: Path) -> None:
    tuned(write(tmp_path, made_sites), tmp_path / "sites-optuna", Progress(), trials=2)
    assert len(find_runs(tmp_path)) == 4 and records(tmp_path).keys() <= records(searched).keys()


def test_test_results_have_no_say(searched: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With test scores turned upside down the same settings are tried and given up."""
    from perinvfl.runs import events

    real = events.evaluation_event

    def turned(*arguments: Any, **named: Any) -> Event:
        event = real(*arguments, **named)
        for kind in ("personal", "global"):
            for case in ("2023", "same contexts"):
                event[kind][case] = [1 - score for score in event[kind][case]]
        return event

    monkeypatch.setattr(events, "evaluation_event", turned)
    tuned(file, tmp_path / "sites-optuna", Progress())
    assert records(tmp_path / "sites-optuna").keys() == records(searched).keys()
    pruned = [{run.folder.name for run in find_runs(place) if run.pruned} for place in (tmp_path, searched)]
    assert pruned[0] == pruned[1]


def test_rules_that_look_at_tests_and_data_without_anything_held_out_are_refused(file: Path, tmp_path: Path) -> None:
    asked = "sweep", file, "--sampler", "optuna", "--trials", 2, "--out", tmp_path
    for more, words in (
        (("--rule", "oracle"), "may not learn from test results"),
        (("--rule", "leave-one-client-out"), "a sweep trains with all clients"),
        (("--set", "data.holdout=0"), "nothing is held out"),
    ):
        done = called(*asked, *more)
        check_refusal(done.returncode, done.stdout, done.stderr, words)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="does not ask for inferred contexts"):
        rule_for(read_experiment(file), "worst-inferred-context")


def test_a_damaged_file_of_optuna_is_one_sentence(file: Path, tmp_path: Path) -> None:
    (tmp_path / "sites-optuna").mkdir()
    (tmp_path / "sites-optuna/optuna.db").write_bytes(b"no database" * 200)
    done = called("sweep", file, "--sampler", "optuna", "--trials", 2, "--out", tmp_path)
    check_refusal(done.returncode, done.stdout, done.stderr, "it is Optuna's file")


def test_the_best_setting_can_be_run(searched: Path, tmp_path: Path) -> None:
    done = called("run", searched / "best.toml", "--json", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "done"


def test_what_means_nothing_to_an_algorithm_is_not_searched() -> None:
    assert not search_space(Recommended(), frozenset()), "there is nothing to set"
    assert "server_learning_rate" not in search_space(PooledERM(optimizer="adam"), frozenset())
    assert "learning_rate" in search_space(PooledERM(optimizer="adam"), frozenset())
