"""What a run of a published table is made for is on record, and tells the same as the order of old records did."""

import dataclasses
from pathlib import Path

import pytest

from perinvfl.reproduce import stages
from perinvfl.results.search_records import CHOSEN, SearchRecords
from perinvfl.results.selection import LEAVE_ONE_CLIENT_OUT, ORACLE, RULES
from perinvfl.results.table import published_table
from perinvfl.runs.batches import Dispatcher
from perinvfl.runs.event_log import Writer
from perinvfl.runs.experiment import Experiment, read_experiment
from perinvfl.runs.facts import FORMAT, Effort, Facts, Purpose
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import Run, read_packed, read_run
from perinvfl.runs.train import train
from tests.reproduce.tables import EFFORT, FILE, INFERRED

HONEST = RULES["worst-inferred-context"]
FIELDS = frozenset(Facts("", None, 0, "", None).as_fields())


def train_as_format_2(
    experiment: Experiment, out: Path, watch: Progress, most_together: int, dispatcher: Dispatcher
) -> list[Path]:
    """Train, and have every record tell the facts of its trial."""
    folders = train(experiment, out, watch, most_together, dispatcher)
    for trial, folder in zip(experiment.trials, folders, strict=True):
        run = read_run(folder)
        assert run is not None
        events = run.with_facts(trial.facts).events
        Writer(folder).replace(events)
    return folders


def in_format_1(records: SearchRecords) -> SearchRecords:
    def old(run: Run) -> Run:
        start = {key: value for key, value in run.start.items() if key not in FIELDS}
        return dataclasses.replace(run, events=[start, *run.events[1:]])

    return SearchRecords(*(list(map(old, runs)) for runs in (records.search, records.left_out, records.chosen)))


def table_in_format_2(folder: Path, text: str, effort: Effort) -> SearchRecords:
    (folder / "table.toml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "train", train_as_format_2)
        return stages.reproduce(read_experiment(folder / "table.toml"), folder / "out", effort, 64, lambda line: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inferred")


INFERRED_EFFORT = Effort(trials=3, finalists=2, leave_out=False, seeds=(101, 102))


@pytest.fixture(scope="module")
def inferred(folder: Path) -> SearchRecords:
    return table_in_format_2(folder, INFERRED, INFERRED_EFFORT)


def purposes(runs: list[Run]) -> list[Purpose]:
    found = [run.purpose for run in runs]
    assert all(purpose is not None for purpose in found)
    return [purpose for purpose in found if purpose is not None]


def test_every_stage_is_on_record_with_the_rules_that_asked(tmp_path: Path) -> None:
    records = table_in_format_2(tmp_path, FILE, EFFORT)
    assert set(purposes(records.search)) == {Purpose("search", EFFORT)}
    assert set(purposes(records.left_out)) == {Purpose("left out", EFFORT, (LEAVE_ONE_CLIENT_OUT,))}
    chosen = [run for run in records.chosen if run.asked["training"]["rounds"] == 4]
    longer = [run for run in records.chosen if run.asked["training"]["rounds"] == 6]
    assert set(purposes(longer)) == {Purpose("longer", EFFORT, (ORACLE,))}
    assert {purpose.stage for purpose in purposes(chosen)} == {"chosen"}
    searched = SearchRecords(records.search, records.left_out, [])
    for rule in records.rules():
        taken = {(method, choice.setting) for method, choice in searched.choices(rule).items()}
        asked = {(run.method, run.setting) for run in chosen if run.purpose and rule in run.purpose.rules}
        assert taken <= asked
    old = in_format_1(records)
    for runs, same in ((records.search, old.search), (records.left_out, old.left_out), (records.chosen, old.chosen)):
        assert {run.format for run in runs} == {FORMAT} and {run.format for run in same} == {1}
        assert [dataclasses.replace(run.facts, purpose=None) for run in runs] == [run.facts for run in same]
    for rule in records.rules():
        assert published_table(records, rule) == published_table(old, rule)


def test_records_and_the_order_of_old_runs_name_the_same_candidates(inferred: SearchRecords) -> None:
    old = in_format_1(inferred)
    assert inferred.rules() == old.rules() and HONEST.name in old.rules()
    assert [run.id for run in inferred.looked_at(HONEST)] == [run.id for run in old.looked_at(HONEST)]
    assert 0 < len(inferred.looked_at(HONEST)) < len(inferred.chosen)
    for rule in old.rules():
        assert inferred.choices(rule) == old.choices(rule)
        assert published_table(inferred, rule) == published_table(old, rule)


def test_a_run_taken_by_a_rule_is_no_longer_one_of_a_search(inferred: SearchRecords) -> None:
    for records in (inferred, in_format_1(inferred)):
        for run in records.taken(ORACLE):
            assert (run.label, run.method, run.setting) == (run.method, run.method, None)
        assert [run.facts for run in records.searched_best("source")] == [run.facts for run in records.search]


def test_more_finalists_are_named_on_runs_that_are_there_already(folder: Path, inferred: SearchRecords) -> None:
    before = {run.id: purpose.rules for run, purpose in zip(inferred.chosen, purposes(inferred.chosen), strict=True)}
    more = table_in_format_2(folder, INFERRED, dataclasses.replace(INFERRED_EFFORT, finalists=3))
    after = {run.id: purpose.rules for run, purpose in zip(more.chosen, purposes(more.chosen), strict=True)}
    assert any(before[id] == (ORACLE,) and HONEST.name in after[id] for id in before)
    assert all(set(before[id]) <= set(after[id]) for id in before)
    assert [run.id for run in more.looked_at(HONEST)] == [run.id for run in in_format_1(more).looked_at(HONEST)]
    packed = read_packed(folder / "out" / CHOSEN)
    assert [run.events for run in packed] == [run.events for run in more.chosen]
    again = table_in_format_2(folder, INFERRED, INFERRED_EFFORT)  # with fewer, nothing is forgotten
    assert {run.id for run in again.chosen} == set(before)
    assert [run.events for run in read_packed(folder / "out" / CHOSEN)] == [run.events for run in packed]
