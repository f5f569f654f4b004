"""A published table from end to end, at a tiny size: search, clients left out, fresh seeds, every rule's table."""

import copy
import json
import shutil
from pathlib import Path

import pytest

from perinvfl.cli import call
from perinvfl.learning.groups import Score
from perinvfl.plots.figure_data import look_at, spectrum_values
from perinvfl.reproduce.stages import main, reproduce
from perinvfl.results.search_records import (
    CHOSEN,
    LEFT_OUT,
    LONGER,
    SEARCH,
    SearchRecords,
    default_rule,
    method_of,
    read_published,
    setting_of,
)
from perinvfl.results.selection import RULES, view
from perinvfl.results.table import as_published, published_table
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.records import pack, read_packed
from perinvfl.runs.trial import Effort

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
EFFORT = Effort(trials=3, finalists=2, seeds=(101, 102), longer=6, longer_settings=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SearchRecords, list[str]]:
    folder = tmp_path_factory.mktemp("published")
    (folder / "small.toml").write_text(FILE)
    said: list[str] = []
    return (
        folder,
        reproduce(read_experiment(folder / "small.toml"), folder / "out", EFFORT, together=64, say=said.append),
        said,
    )


def test_every_method_gets_the_same(made: tuple[Path, SearchRecords, list[str]]) -> None:
    folder, published, _ = made
    assert len(read_packed(folder / "out" / SEARCH)) == 3 * 3
    assert len(read_packed(folder / "out" / LEFT_OUT)) == 3 * 2 * 4  # methods, finalists, clients
    for method in ("FedAvg", "PerInvFL", "Shape only"):
        for rule in published.rules():
            choice = published.choices(rule)[method]
            fresh = published.runs_of(method, choice.setting)
            assert [run.start["asked"]["seed"] for run in fresh] == [101, 102]
            assert published.runs_of(method, choice.last_setting)


def test_the_oracle_alone_sees_the_longer_runs(made: tuple[Path, SearchRecords, list[str]]) -> None:
    folder, published, _ = made
    longer = read_packed(folder / "out" / LONGER)
    assert [(method_of(run), run.start["asked"]["seed"]) for run in longer] == [
        (method, seed) for method in ("FedAvg", "PerInvFL", "Shape only") for seed in (101, 102)
    ]
    ids = {run.start["id"] for run in longer}
    for run in longer:
        assert run.evaluations[-1]["round"] == 6 and setting_of(run) >= 3  # counted on from the three searched
        shorter = published.runs_of(method_of(run), setting_of(run) - 3)
        changed = {key for key in run.start["asked"] if run.start["asked"][key] != shorter[0].start["asked"][key]}
        assert changed <= {"training", "algorithm", "seed"}
    for rule in published.rules():
        assert (ids <= {run.start["id"] for run in published.looked_at(RULES[rule])}) == (rule == "oracle")
    assert {run.start["id"] for run in read_published(folder / "out").chosen} >= ids


def test_rules_are_those_that_find_something(made: tuple[Path, SearchRecords, list[str]]) -> None:
    _, published, _ = made
    assert published.rules() == ["source", "leave-one-client-out", "oracle"]  # no context was inferred here
    assert SearchRecords(published.search, [], []).rules() == ["source", "oracle"]


def test_left_out_runs_hold_no_test_result(made: tuple[Path, SearchRecords, list[str]]) -> None:
    _, published, _ = made
    for run in published.left_out:
        assert run.start["clients"] == 3
        for event in run.evaluations:
            assert set(event["global"]) == {"left-out"}


def test_what_is_there_is_not_made_again(made: tuple[Path, SearchRecords, list[str]]) -> None:
    folder, published, _ = made
    said: list[str] = []
    again = reproduce(read_experiment(folder / "small.toml"), folder / "out", EFFORT, together=64, say=said.append)
    assert len(said) == 4 and not any("done in" in line for line in said)
    assert [run.events for run in again.chosen] == [run.events for run in published.chosen]


def test_a_rule_that_finds_nothing_makes_no_table(
    made: tuple[Path, SearchRecords, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["table", str(made[0] / "out"), "--rule", "worst-inferred-context"]) == 2
    assert "--rule worst-inferred-context: these records hold nothing" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "worst-inferred-context"])
def test_the_table_of_each_rule(
    rule: str, made: tuple[Path, SearchRecords, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, published, _ = made
    assert call(["table", str(folder / "out"), "--rule", rule, "--format", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert (table["benchmark"], table["rule"], table["seeds"]) == ("rc_mnist", rule, 2)
    methods = [row["method"] for row in table["rows"]]
    assert methods == ["Constant", "FedAvg", "FedAvg, paper", "PerInvFL", "PerInvFL, paper", "Shape only"]
    row = table["rows"][3]
    choice = published.choices(rule)["PerInvFL"]
    runs = published.runs_of("PerInvFL", choice.setting)
    rounds = choice.rounds(len(runs))
    assert row["rounds"] == list(rounds)
    events = [
        event for run, round in zip(runs, rounds, strict=True) for event in run.evaluations if event["round"] == round
    ]
    assert len(events) == 2
    expected = [sum(event["personal"]["0.1"]) / 4 for event in events]
    assert row["cases"]["0.1"]["mean"] == pytest.approx(100 * sum(expected) / len(expected))
    assert row["paper_average"] == pytest.approx(52.796)


def test_the_committed_tables_are_there() -> None:
    for name, settings, seeds in (("rc_mnist", 48, 5), ("rc_fmnist", 48, 5), ("waterbird", 16, 3)):
        published = read_published(Path(__file__).parents[2] / "results" / name)
        assert len(published.search) == 12 * settings
        for rule in ("source", "leave-one-client-out", "oracle"):
            for method, choice in published.choices(rule).items():
                assert len(published.runs_of(method, choice.setting)) == seeds
                assert len(published.runs_of(method, choice.last_setting)) == seeds


def test_photographs_by_the_oracle_perinvfl_is_above_every_baseline_of_the_paper() -> None:
    table = published_table(read_published(Path(__file__).parents[2] / "results" / "waterbird"), "oracle", "balanced")
    rows = {row.method: row for row in table.rows}
    ours = rows["PerInvFL"]
    for method in ("FedAvg", "Ditto", "FTFA", "pFedMe", "GroupDRO", "IRM", "IRM-L2", "IRM-FT", "Majority class"):
        assert ours.average > rows[method].average and ours.cases["0.1"][0] > rows[method].cases["0.1"][0]


# Contexts inferred ---------------------------------------------------------------------------------------------

INFERRED = """
name = "inferred"
[search]
trials = 3
finalists = 2
leave_out = false
seeds = [101, 102]
[data]
benchmark = "rc_mnist"
train_per_client = 60
test_per_client = 40
holdout = 20
[contexts]
infer = "hard"
use = "judge"
reference_rounds = 3
reference_rate = 0.01
[model]
hidden = [8]
[training]
rounds = 4
evaluate_every = 2
[[algorithm]]
name = "fedavg"
[[algorithm]]
name = "perinvfl"
label = "Balanced"
contexts.use = "balance"
personal_optimizer = "adam"
l2 = {from = 1e-4, to = 1e-3}
[[algorithm]]
name = "fedavg"
label = "Shape only"
data.grayscale = true
contexts.infer = "given"
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SearchRecords]:
    folder = tmp_path_factory.mktemp("judged")
    (folder / "inferred.toml").write_text(INFERRED)
    experiment = read_experiment(folder / "inferred.toml")
    return folder / "out", reproduce(experiment, folder / "out", experiment.effort, together=64, say=lambda line: None)


def test_the_worst_inferred_context_looks_at_fresh_seeds(judged: tuple[Path, SearchRecords]) -> None:
    _, published = judged
    rule = RULES["worst-inferred-context"]
    assert published.rules() == ["source", "worst-inferred-context", "oracle"] and not published.left_out
    assert published.looked_at(RULES["oracle"]) is published.chosen
    seen = {(method_of(run), setting_of(run)) for run in published.looked_at(rule)}
    assert seen < {(method_of(run), setting_of(run)) for run in published.chosen}
    assert published.looked_at(RULES["source"]) is published.search
    choices = published.choices("worst-inferred-context")
    assert list(choices) == ["FedAvg", "Balanced", "Shape only"]
    assert choices["Shape only"] == published.choices("source")["Shape only"]  # which has nothing else to look at
    for method, choice in choices.items():
        assert [run.start["asked"]["seed"] for run in published.runs_of(method, choice.setting)] == [101, 102]
    for run in published.search:
        if method_of(run) == "Balanced":
            assert 1e-4 <= run.start["asked"]["algorithm"]["l2"] <= 1e-3
            assert len(run.start["notes"]["reference"]["wrong"]) == 4


def test_its_choice_does_not_change_with_test_results(judged: tuple[Path, SearchRecords]) -> None:
    _, published = judged
    other = copy.deepcopy(published)
    for run in [*other.search, *other.chosen]:
        for event in run.evaluations:
            for kind in ("personal", "global"):
                for case in [case for case in event.get(kind, {}) if not case.startswith("validation")]:
                    event[kind][case] = [1 - value for value in event[kind][case]]
    for rule in ("source", "worst-inferred-context"):
        assert other.choices(rule) == published.choices(rule)


def test_the_oracle_brings_it_no_candidate(judged: tuple[Path, SearchRecords]) -> None:
    """A setting that has fresh seeds because its test results were good is not to be had without test results."""
    _, published = judged
    searched = SearchRecords(published.search, [], [])
    allowed = set()
    for name in ("source", "worst-inferred-context"):
        for method, choice in searched.choices(name).items():
            allowed |= {(method, choice.setting), (method, choice.last_setting)}
    for method in published.methods():
        runs = [run for run in published.search if method_of(run) == method]
        scored = [(view(RULES["worst-inferred-context"], setting_of(run), [run]), setting_of(run)) for run in runs]
        best = sorted((-max(seen.scores.values()), number) for seen, number in scored if seen is not None)
        allowed |= {(method, number) for _, number in best[:2]}  # two finalists, as the file says
    looked_at = published.looked_at(RULES["worst-inferred-context"])
    assert {(method_of(run), setting_of(run)) for run in looked_at} == allowed


def test_no_published_choice_was_brought_by_the_oracle() -> None:
    published = read_published(Path(__file__).parents[2] / "results" / "beyond" / "rc_mnist")
    looked_at = {(method_of(run), setting_of(run)) for run in published.looked_at(RULES["worst-inferred-context"])}
    made = {(method_of(run), setting_of(run)) for run in published.chosen}
    assert looked_at < made
    for method, choice in published.choices("worst-inferred-context").items():
        assert {(method, choice.setting), (method, choice.last_setting)} <= looked_at


def test_several_published_tables_stand_below_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Path(__file__).parents[2] / "results" / "beyond"
    (tmp_path / "results" / "some").mkdir(parents=True)
    for name in ("unrotated", "waterbird", "rc_mnist"):
        (tmp_path / "results" / "some" / name).symlink_to(results / name)
    monkeypatch.chdir(tmp_path)
    assert call(["table", "some", "--format", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["rule"] == "worst-inferred-context"
    assert list(dict.fromkeys(row["benchmark"] for row in table["rows"])) == ["rc_mnist", "waterbird", "unrotated"]
    for name in ("rc_mnist", "waterbird", "unrotated"):
        own = [row for row in table["rows"] if row["benchmark"] == name]
        score: Score = "balanced" if name == "waterbird" else "accuracy"
        alone = published_table(read_published(results / name), "worst-inferred-context", score).rows
        assert [(row["method"], row["average"]) for row in own] == [(row.method, row.average) for row in alone]
        assert {row["score"] for row in own} == {score}
    assert call(["table", "some", "--score", "accuracy", "--format", "json"]) == 0
    plain = json.loads(capsys.readouterr().out)["rows"]
    assert next(row["average"] for row in plain if row["method"] == "Majority class") > 70
    assert call(["table", "some"]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = [line.strip("│ ").split("│")[0].strip() for line in lines]
    names = ["rc_mnist", "waterbird, class-balanced accuracy", "unrotated"]
    assert [start for start in starts if start in names] == names
    assert not any("…" in line for line in lines if line.startswith("│")), "a number is cut off"
    told = " ".join(lines)
    assert "rc_mnist 16 settings a method, 5 seeds" in told
    assert {row["seeds"] for row in table["rows"] if row["kind"] == "measured"} == {5}


def test_its_table_stands_a_client_with_nothing_wrong(
    judged: tuple[Path, SearchRecords], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, published = judged
    shutil.copytree(folder, tmp_path / "out")
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


def test_the_honest_rule_is_the_default_where_it_can_judge_every_method(
    made: tuple[Path, SearchRecords, list[str]], judged: tuple[Path, SearchRecords]
) -> None:
    assert default_rule(judged[1]) == "worst-inferred-context"
    assert default_rule(made[1]) == default_rule(judged[1], made[1]) == "oracle"
    partly = copy.deepcopy(judged[1])
    for run in partly.chosen:
        if method_of(run) == "FedAvg":
            for event in run.evaluations:
                for kind in ("global", "personal"):
                    event.get(kind, {}).pop("validation wrong", None)
                    event.get(kind, {}).pop("validation right", None)
    assert default_rule(partly) == "oracle"


@pytest.mark.parametrize("rule", ["oracle", "source"])
def test_figures_show_what_the_table_tells(
    rule: str, made: tuple[Path, SearchRecords, list[str]], tmp_path: Path
) -> None:
    folder, published, _ = made
    told = {row.method: row for row in published_table(published, rule).rows if row.kind == "measured"}
    shown = look_at(published.taken(rule))
    assert shown.methods == list(told)
    for value in spectrum_values(shown):
        if value["source"] == "measured":
            assert value["accuracy"] == pytest.approx(told[value["method"]].cases[value["case"]][0])
    for method, choice in published.choices(rule).items():
        runs = shown.runs[method]
        assert [run.evaluations[-1]["round"] for run in runs] == list(choice.rounds(len(runs)))
    for run in published.taken(rule, to_the_end=True):
        assert run.evaluations[-1]["round"] == run.start["asked"]["training"]["rounds"]
    assert len(published.searched_best(rule)) == len(published.search)
    assert call(["plot", str(folder / "out"), "--rule", rule, "--out", str(tmp_path)]) == 0
    kinds = ("spectrum", "learning", "sensitivity", "clients")
    assert sorted(path.name for path in tmp_path.glob("*.png")) == sorted(f"out-{kind}.png" for kind in kinds)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("data", {"p_train": [0.7, 0.65, 0.6, 0.55]}),
        ("data", {"rotations": [0]}),
        ("data", {"label_noise": 0.05}),
        ("data", {"grayscale": True}),
        ("model", {"blind_to": "rotations"}),
        ("contexts", {"use": "discount"}),
        ("data", {"middle": [0.4, 0.8]}),
        ("algorithm", {"agreement": 0.8}),
        ("algorithm", {"matching": 0.5}),
        ("algorithm", {"personal_part": "head"}),
    ],
)
def test_the_papers_rows_stand_beside_its_own_data_alone(
    part: str, change: dict[str, object], made: tuple[Path, SearchRecords, list[str]]
) -> None:
    run = copy.deepcopy(made[1].search[0])
    assert as_published(run)
    run.start["asked"].setdefault(part, {}).update(change)
    assert not as_published(run)


def test_one_row_of_a_table_is_the_same_as_among_the_others(
    made: tuple[Path, SearchRecords, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, published, _ = made
    asked = [str(folder / "small.toml"), "--out", str(tmp_path), "--trials", "3", "--finalists", "2", "--seeds", "101"]
    assert main([*asked, "--only", "PerInvFL"]) == 0
    alone = read_published(tmp_path)
    assert alone.methods() == ["PerInvFL"]
    ids = {run.start["id"] for run in published.search if method_of(run) == "PerInvFL"}
    assert {run.start["id"] for run in alone.search} == ids
    capsys.readouterr()
    assert main([*asked, "--only", "Perinvfl"]) == 2
    assert 'error: --only "Perinvfl": small has FedAvg, PerInvFL, Shape only.' in capsys.readouterr().err
