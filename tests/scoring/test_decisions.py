"""From own data to a decision: scores in tables, a search that ends with a file, runs chosen by method and seed."""

import csv
import json
import random
import tomllib
from collections import Counter
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from sklearn import metrics

import perinvfl as pf
from perinvfl.cli import call
from perinvfl.cli.table import ScoreName
from perinvfl.results.ranking import Ranked, rank
from perinvfl.results.score_names import MEASURES
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.loaded import open_run
from perinvfl.runs.picking import Pick
from perinvfl.runs.predictions import PREDICTIONS
from perinvfl.runs.records import Run, find_runs, lead_scores, mean_known
from perinvfl.runs.search import search
from perinvfl.scoring.run_scores import run_scores

FILE = """
name = "{name}"
seeds = [0, 1]
[data]
benchmark = "file"
path = "{path}"
label = "{label}"
client = "hospital"
context = "year"
ignore = ["{ignore}"]
{data}
[model]
hidden = [4]
[training]
rounds = 6
[[algorithm]]
name = "ditto"
personal_learning_rate = 0.3
learning_rate = {rate}
[[algorithm]]
name = "fedavg"
learning_rate = {rate}
"""


def make_rows(folder: Path) -> None:
    """Two hospitals of different size, three years, a label of two classes and one that is a number."""
    rng = random.Random(1)
    with open(folder / "sites.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "year", "marker", "age", "ill", "stay"])
        for i in range(420):
            hospital, year = ("north", "west")[i % 7 == 0], 2021 + i % 3
            marker, age = rng.gauss(0, 1), rng.gauss(60, 10)
            ill = marker + rng.gauss(0, 1) > 0.8
            writer.writerow([hospital, year, marker, age, "yes" if ill else "no", 5 + 2 * marker + rng.gauss(0, 1)])


def write_file(folder: Path, name: str, label: str = "ill", rate: str = "0.3", data: str = "") -> Path:
    make_rows(folder)
    ignore = "stay" if label == "ill" else "ill"
    file = folder / f"{name}.toml"
    data = data or "test_contexts = [2023]"
    file.write_text(FILE.format(name=name, path="sites.csv", label=label, ignore=ignore, rate=rate, data=data))
    return file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of two methods with two seeds, and the same of a regression."""
    folder = tmp_path_factory.mktemp("decisions")
    for name, label in (("sites", "ill"), ("stays", "stay")):
        assert call(["run", str(write_file(folder, name, label)), "--quiet", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    for name, label in (("sites", "ill"), ("stays", "stay")):
        file = write_file(folder, name, label, rate="{from = 0.001, to = 0.5}")
        assert call(["sweep", str(file), "--trials", "3", "--quiet", "--out", str(folder / "runs")]) == 0
    return folder / "runs"


def run_of(place: Path, method: str, seed: int) -> Run:
    (run,) = Pick((method,), (seed,)).among(find_runs(place))
    return run


def on_validation(entry: Ranked) -> float:
    return fmean(mean_known(lead_scores(run.evaluations[-1])["validation"]) for run in entry.runs)


def test_scores_are_those_of_the_models_on_the_samples(made: Path) -> None:
    run = run_of(made / "sites", "ditto", 1)
    opened, found = open_run(run.folder), run_scores(run)
    test = opened.federation.tests["2023"]
    for client, name in enumerate(opened.clients):
        real = test.context[client] >= 0
        logits = opened.predict(opened.lead(client), test.x[client][real])[:, 0].numpy()
        y = test.y[client][real].numpy()
        own = found["cases"]["2023"]["clients"][name]
        assert own["samples"] == len(y) and own["counts"] == [int((y == 0).sum()), int((y == 1).sum())]
        assert own["scores"]["auroc"]["value"] == pytest.approx(metrics.roc_auc_score(y, logits))
        assert own["scores"]["accuracy"]["value"] == pytest.approx(run.evaluations[-1]["personal"]["2023"][client])
        assert own["few"] == (min(own["counts"]) < 10)
    assert found["cases"]["2023"]["few"] == ["west"]  # the small hospital
    assert np.sum(found["cases"]["2023"]["confusion"]) == sum(
        own["samples"] for own in found["cases"]["2023"]["clients"].values()
    )


def test_the_errors_of_a_regression_are_in_the_labels_unit(made: Path) -> None:
    run = run_of(made / "stays", "fedavg", 0)
    opened, found = open_run(run.folder), run_scores(run)
    schema, test = opened.federation.schema, opened.federation.tests["2023"]
    real = test.context[0] >= 0
    errors = (opened.predict(opened.lead(0), test.x[0][real])[:, 0] - test.y[0][real]) * schema.label_scale
    mae = found["cases"]["2023"]["clients"][opened.clients[0]]["scores"]["mae"]
    assert (
        mae["value"] == pytest.approx(float(errors.abs().mean()), rel=1e-5) and mae["low"] < mae["value"] < mae["high"]
    )


def test_the_table_shows_a_score_with_its_interval_and_marks_small_counts(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["table", str(made / "sites"), "--score", "auroc"]) == 0
    shown = capsys.readouterr().out
    assert "AUROC by context" in shown and "95 % bootstrap interval over samples" in shown and "± over seeds" in shown
    assert "* fewer than 10 samples of a class at a client" in shown and "west (2023)" in shown
    assert "Average" not in shown and "Worst case" not in shown and "Worst client" in shown  # one test context
    assert call(["table", str(made / "sites"), "--score", "auroc", "--format", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    (ditto,) = [row for row in table["rows"] if row["method"] == "Ditto"]
    values = [run_scores(run_of(made / "sites", "ditto", seed))["cases"]["2023"]["mean"]["auroc"] for seed in (0, 1)]
    assert ditto["cases"]["2023"]["mean"] == pytest.approx(np.mean([value["value"] for value in values]))
    assert ditto["cases"]["2023"]["std"] == pytest.approx(np.std([value["value"] for value in values]))
    assert ditto["cases"]["2023"]["low"] == pytest.approx(np.mean([value["low"] for value in values]))
    assert next(row for row in table["rows"] if row["method"] == "Constant")["cases"]["2023"]["mean"] == 0.5


def test_the_threshold_of_sensitivity_is_named(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["table", str(made / "sites"), "--score", "sensitivity"]) == 0
    value = run_scores(run_of(made / "sites", "fedavg", 0))["threshold"]["value"]
    shown = capsys.readouterr().out
    assert 'Threshold on the probability of "yes"' in shown and f"{value:.2f}" in shown and "not on the tests" in shown


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["sites", "--score", "mae"], "a score of numbers, and this is a binary task"),
        (["stays", "--score", "auroc"], "a score of classes, and this is a regression task"),
        (["sites", "--rule", "source"], "a rule chooses among the settings of a search"),
        (["sites", "--method", "irm"], "there are Ditto, FedAvg"),
        (["sites", "--seed", "7"], "--seed 7: no run here has it; there are 0, 1"),
    ],
)
def test_what_cannot_be_shown_gets_one_sentence(
    made: Path, asked: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["table", str(made / asked[0]), *asked[1:]]) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1


def test_runs_without_predictions_say_so(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(made / "sites", "ditto", 0)
    (tmp_path / "old").mkdir()
    (tmp_path / "old/events.jsonl").write_bytes((run.folder / "events.jsonl").read_bytes())
    assert call(["table", str(tmp_path), "--score", "auroc"]) == 2
    assert "holds neither scores nor predictions of single samples" in capsys.readouterr().err
    assert call(["table", str(tmp_path), "--score", "accuracy"]) == 0  # that is on record
    (tmp_path / "old" / PREDICTIONS).write_bytes(b"nothing")
    assert call(["table", str(tmp_path), "--score", "auroc"]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_every_score_has_an_option() -> None:
    assert {score.value for score in ScoreName} == {*MEASURES, "worst-group"}


def test_leave_one_context_out_scores_each_context_by_the_run_that_never_saw_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_file(tmp_path, "folds", data="leave_one_context_out = true")
    assert call(["run", str(file), "--quiet", "--out", str(tmp_path)]) == 0
    assert call(["table", str(tmp_path / "folds"), "--score", "brier", "--format", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    (row,) = [row for row in table["rows"] if row["method"] == "FedAvg"]
    for year in ("2021", "2022", "2023"):
        runs = [run for run in find_runs(tmp_path / "folds") if run.method == "FedAvg" and run.fold == year]
        values = [run_scores(run)["cases"][year]["mean"]["brier"]["value"] for run in runs]
        assert row["cases"][year]["mean"] == pytest.approx(np.mean(values)) and len(values) == 2


def test_a_session_scores_as_its_saved_record_does(tmp_path: Path) -> None:
    make_rows(tmp_path)
    named = {"label": "ill", "client": "hospital", "context": "year"}
    federation = pf.load(tmp_path / "sites.csv", ignore=["stay"], test_contexts=[2023], **named)  # type: ignore[arg-type]
    session = pf.start(federation, "ditto", rounds=3, model={"hidden": [4]}).run()
    found = session.scores()
    (run,) = find_runs(session.save(tmp_path / "saved"))
    assert run_scores(run) == found and found["models"] == "personal"
    assert session.scores("global")["cases"]["2023"]["mean"] != found["cases"]["2023"]["mean"]


def test_a_search_ends_with_a_file_that_trains_the_winner_again(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranking = rank(find_runs(swept / "sites-sweep"))
    assert ranking.rule.name == "source" and len(ranking.ranked) == 6
    held_out = [on_validation(entry) for entry in ranking.ranked]
    assert held_out == sorted(held_out, reverse=True)
    best = swept / "sites-sweep/best.toml"
    trials = read_experiment(best).trials
    assert [trial.seed for trial in trials] == [0, 1]
    for trial, run in zip(trials, ranking.best.runs, strict=True):
        asked, was = trial.asked(), json.loads(json.dumps(run.asked))
        was["algorithm"]["label"] = ranking.best.method
        assert json.loads(json.dumps(asked)) == was
    assert call(["run", str(best), "--out", str(tmp_path), "--quiet"]) == 0
    for run in find_runs(tmp_path):
        same = next(old for old in ranking.best.runs if old.seed == run.seed)
        assert run.evaluations[-1]["global"] == same.evaluations[-1]["global"]
    assert call(["table", str(swept / "sites-sweep")]) == 0
    shown = capsys.readouterr().out
    assert "learning_rate" in shown and "± over seeds" in shown and "looked at after the choice" in shown


def test_the_best_of_a_regression_has_the_smallest_error(swept: Path) -> None:
    ranking = rank(find_runs(swept / "stays-sweep"))
    errors = [on_validation(entry) for entry in ranking.ranked]
    assert errors == sorted(errors) and errors[0] < errors[-1]
    assert tomllib.loads((swept / "stays-sweep/best.toml").read_text())["name"] == "stays-best"


def test_a_rule_that_does_not_apply_says_so_and_the_oracle_says_what_it_is(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(swept / "sites-sweep")
    assert call(["table", place, "--rule", "leave-one-client-out"]) == 2
    assert "so none is left out" in capsys.readouterr().err
    assert call(["table", place, "--rule", "best"]) == 2
    assert "is not known" in capsys.readouterr().err
    assert call(["table", place, "--rule", "oracle", "--format", "md"]) == 0
    assert "This looks at test results" in capsys.readouterr().out


def test_without_held_out_data_a_search_is_not_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_file(tmp_path, "sites", rate="{from = 0.1, to = 0.5}", data="test_contexts = [2023]\nholdout = 0")
    assert call(["sweep", str(file), "--trials", "2", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "not ranked: nothing is held out" in captured.out
    assert captured.err.startswith("Settings are not ranked"), "before anything is trained"
    assert not (tmp_path / "sites-sweep/best.toml").exists()
    held_out = ["--set", "data.holdout=0.2"]
    assert call(["sweep", str(file), "--trials", "2", "--out", str(tmp_path), *held_out]) == 0
    ranked = capsys.readouterr().out
    assert (tmp_path / "sites-sweep/best.toml").exists() and "Best setting" in ranked
    assert call(["table", str(tmp_path / "sites-sweep")]) == 0, "with the runs from before in the same folder"
    said = " ".join(capsys.readouterr().out.split())
    assert "8 runs without held-out data left out." in said


@pytest.mark.parametrize(
    ("rule", "holdout", "said"),
    [
        ("leave-one-client-out", 0.2, "a sweep trains with all clients, so none is left out"),
        ("worst-inferred-context", 0.2, "this file does not ask for inferred contexts (contexts.infer); use source."),
        ("source", 0, "nothing is held out to rank them by without looking at test results"),
    ],
)
def test_a_rule_that_cannot_apply_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: str, holdout: float, said: str
) -> None:
    settings = f"test_contexts = [2023]\nholdout = {holdout}"
    file = write_file(tmp_path, "sites", rate="{from = 0.1, to = 0.5}", data=settings)
    assert call(["sweep", str(file), "--trials", "2", "--out", str(tmp_path / "runs"), "--rule", rule]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


def test_a_method_with_nothing_to_set_is_tried_once(tmp_path: Path) -> None:
    file = write_file(tmp_path, "sites", rate="{from = 0.1, to = 0.5}", data="test_contexts = [2023]\nholdout = 0.2")
    file.write_text(file.read_text() + '[[algorithm]]\nname = "recommended"\n')
    drawn = search(read_experiment(file), 3, 0).trials
    counts = Counter((trial.method, trial.seed) for trial in drawn)
    assert counts["Recommended", 0] == 1 and counts["FedAvg", 0] == 3


def test_a_run_is_chosen_by_method_and_seed(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = str(made / "sites.csv")
    ask = ["predict", str(made / "sites"), rows, "--client", "north"]
    assert call([*ask, "--method", "FedAvg"]) == 2
    assert 'choose with --method and --seed: "FedAvg" seed 0, "FedAvg" seed 1' in capsys.readouterr().err
    assert call([*ask, "--method", "fedavg", "--seed", "1"]) == 0
    chosen = capsys.readouterr().out
    folder = str(run_of(made / "sites", "fedavg", 1).folder)
    assert call(["predict", folder, rows, "--client", "north"]) == 0
    assert capsys.readouterr().out == chosen


def test_a_year_as_a_number_or_as_a_text_is_the_same_run(tmp_path: Path) -> None:
    ids = [
        [trial.id for trial in read_experiment(write_file(tmp_path, "one", data=f"test_contexts = {years}")).trials]
        for years in ("[2023]", '["2023"]', "[2022]")
    ]
    assert ids[0] == ids[1] != ids[2]
