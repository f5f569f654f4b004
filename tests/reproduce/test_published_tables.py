"""Tables and figures of published records, the committed ones among them."""

import copy
import json
from pathlib import Path

import pytest

from perinvfl.cli import call
from perinvfl.learning.groups import Score
from perinvfl.plots.figure_data import look_at, spectrum_values
from perinvfl.results.paper import as_published
from perinvfl.results.selection import RULES
from perinvfl.results.table import published_table
from perinvfl.runs.records import pack
from tests.reproduce.tables import RESULTS, Made, published


def test_a_rule_that_finds_nothing_makes_no_table(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["table", str(made.folder / "out"), "--rule", "worst-inferred-context"]) == 2
    assert "--rule worst-inferred-context: these records hold nothing" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "worst-inferred-context"])
def test_the_table_of_each_rule(rule: str, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    folder, records = made
    assert call(["table", str(folder / "out"), "--rule", rule, "--format", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert (table["benchmark"], table["rule"], table["seeds"]) == ("rc_mnist", rule, 2)
    methods = [row["method"] for row in table["rows"]]
    assert methods == ["Constant", "FedAvg", "FedAvg, paper", "PerInvFL", "PerInvFL, paper", "Shape only"]
    row = table["rows"][3]
    choice = records.choices(rule)["PerInvFL"]
    runs = records.runs_of("PerInvFL", choice.setting)
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
    of_the_paper = [("rc_mnist", 12, 48, 5), ("rc_fmnist", 12, 48, 5), ("waterbird", 12, 16, 3)]
    for name, methods, settings, seeds in (*of_the_paper, ("more/rc_mnist", 19, 48, 5), ("more/rc_fmnist", 19, 48, 5)):
        records = published(RESULTS / name)
        assert len(records.search) == methods * settings
        for rule in ("source", "leave-one-client-out", "oracle"):
            for method, choice in records.choices(rule).items():
                assert len(records.runs_of(method, choice.setting)) == seeds
                assert len(records.runs_of(method, choice.last_setting)) == seeds


@pytest.mark.parametrize("name", ["rc_mnist", "rc_fmnist", "more/rc_mnist", "more/rc_fmnist"])
def test_every_method_on_the_digits_got_the_same_effort(name: str) -> None:
    records = published(RESULTS / name)
    longer = [run for run in records.chosen if run.asked["training"]["rounds"] == 600]
    for method in records.methods():
        assert sum(run.method == method for run in records.search) == 48
        assert sum(run.method == method for run in records.left_out) == 10 * 4  # finalists, each without each client
        assert sum(run.method == method for run in longer) == 2 * 5  # settings with each fresh seed


def test_a_chosen_setting_without_fresh_runs_is_one_sentence(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = made.records.choices("source")["PerInvFL"].setting
    fewer = [run for run in made.records.chosen if (run.method, run.setting) != ("PerInvFL", setting)]
    for file in ("search.jsonl.xz", "left_out.jsonl.xz"):
        (tmp_path / file).symlink_to(made.folder / "out" / file)
    pack(fewer, tmp_path / "chosen.jsonl.xz")
    assert call(["table", str(tmp_path), "--rule", "source"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"PerInvFL: setting {setting} of the search is chosen, and has no runs with fresh seeds yet" in said


def test_photographs_by_the_oracle_perinvfl_is_above_every_baseline_of_the_paper() -> None:
    table = published_table(published(RESULTS / "waterbird"), "oracle", "balanced")
    rows = {row.method: row for row in table.rows}
    ours = rows["PerInvFL"]
    for method in ("FedAvg", "Ditto", "FTFA", "pFedMe", "GroupDRO", "IRM", "IRM-L2", "IRM-FT", "Majority class"):
        assert ours.average > rows[method].average and ours.cases["0.1"][0] > rows[method].cases["0.1"][0]


def test_several_published_tables_stand_below_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = RESULTS / "beyond"
    (tmp_path / "results" / "some").mkdir(parents=True)
    for name in ("unrotated", "waterbird", "rc_mnist"):
        (tmp_path / "results" / "some" / name).symlink_to(results / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("perinvfl.cli.table.read_published", lambda folder: published(folder.resolve()))
    assert call(["table", "some", "--format", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["rule"] == "worst-inferred-context"
    assert list(dict.fromkeys(row["benchmark"] for row in table["rows"])) == ["rc_mnist", "waterbird", "unrotated"]
    for name in ("rc_mnist", "waterbird", "unrotated"):
        own = [row for row in table["rows"] if row["benchmark"] == name]
        score: Score = "balanced" if name == "waterbird" else "accuracy"
        alone = published_table(published(results / name), "worst-inferred-context", score).rows
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
    text = " ".join(lines)
    assert "rc_mnist 16 settings per method, 5 seeds" in text
    assert {row["seeds"] for row in table["rows"] if row["kind"] == "measured"} == {5}


@pytest.mark.parametrize("rule", ["oracle", "source"])
def test_figures_show_what_the_table_tells(rule: str, made: Made, tmp_path: Path) -> None:
    folder, records = made
    rows = {row.method: row for row in published_table(records, rule).rows if row.kind == "measured"}
    shown = look_at(records.taken(rule))
    assert shown.methods == list(rows)
    for value in spectrum_values(shown):
        if value["source"] == "measured":
            assert value["accuracy"] == pytest.approx(rows[value["method"]].cases[value["case"]][0])
    for method, choice in records.choices(rule).items():
        runs = shown.runs[method]
        assert [run.evaluations[-1]["round"] for run in runs] == list(choice.rounds(len(runs)))
    for run in records.taken(rule, to_the_end=True):
        assert run.evaluations[-1]["round"] == run.asked["training"]["rounds"]
    assert len(records.searched_best(rule)) == len(records.search)
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
def test_the_papers_rows_stand_beside_its_own_data_alone(part: str, change: dict[str, object], made: Made) -> None:
    run = copy.deepcopy(made.records.search[0])
    assert as_published(run)
    run.asked.setdefault(part, {}).update(change)
    assert not as_published(run)
