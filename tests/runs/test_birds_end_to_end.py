"""Birds from an experiment file to a table: groups in the records, rules, the majority row, the executor measured."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from perinvfl.cli import call
from perinvfl.engine.timing import fastest
from perinvfl.learning.groups import balanced_accuracy, constant_hits, pooled, worst_group_accuracy
from perinvfl.reproduce.command import main as reproduce
from perinvfl.results.scores import global_average
from perinvfl.results.selection import worst_test_accuracy
from perinvfl.runs import group as training_room
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.progress import Lines
from perinvfl.runs.records import Run, find_runs, read_run
from perinvfl.runs.train import train

ROOT = Path(__file__).parents[2]
FILE = """
name = "birds"
seeds = [0, 1]
[data]
benchmark = "drawn_birds"
train_per_client = 16
test_per_client = 6
birds = 32
backgrounds = 80
size = 16
[model]
kind = "resnet18"
width = 4
[training]
rounds = 2
evaluate_every = 1
batch_size = 8
device = "cpu"
[[algorithm]]
name = "fedavg"
[[algorithm]]
name = "perinvfl"
personal_learning_rate = 0.05
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("birds")
    (folder / "birds.toml").write_text(FILE)
    train(read_experiment(folder / "birds.toml"), folder / "runs", Lines(lambda line: None))
    return folder / "runs"


def test_records_hold_the_groups_and_the_class_balanced_accuracy(runs: Path) -> None:
    for run in find_runs(runs):
        counts = run.start["notes"]["groups"]["counts"]
        for event in run.evaluations:
            kind = "personal" if "personal" in event else "global"
            for case, accuracies in event[kind].items():
                right, there = event[f"{kind} groups"][case], counts[case]
                for client in range(4):
                    assert sum(right[client]) / sum(there[client]) == pytest.approx(accuracies[client], abs=1e-5)
                assert event["balanced"][case] == pytest.approx(balanced_accuracy(right, there), abs=1e-5)
            spectrum = run.start["spectrum"]
            assert worst_test_accuracy(event, spectrum) == min(event["balanced"][case] for case in spectrum)


def test_the_table_shows_groups_and_the_majority_class(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["table", str(runs), "--format", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    majority, fedavg = table["rows"][0], table["rows"][1]
    assert majority["method"] == "Majority class"
    assert majority["by_group"]["Balanced"] == 50 and majority["by_group"]["Worst group"] == 0
    assert majority["cases"]["0.1"]["mean"] > 50
    own = [run for run in find_runs(runs) if run.start["asked"]["algorithm"]["name"] == "fedavg"]
    events = [run.evaluations[-1] for run in own]
    counts = [run.start["notes"]["groups"]["counts"] for run in own]
    spectrum = table["rows"][1]["cases"].keys() & {"0.1", "0.2", "0.3", "0.4", "0.5"}
    expected = [
        balanced_accuracy(event["global groups"][case], there[case])
        for event, there in zip(events, counts, strict=True)
        for case in spectrum
    ]
    assert fedavg["by_group"]["Balanced"] == pytest.approx(100 * sum(expected) / len(expected))
    worst = [
        worst_group_accuracy(pooled([e["global groups"][c] for c in spectrum]), pooled([n[c] for c in spectrum]))
        for e, n in zip(events, counts, strict=True)
    ]
    assert fedavg["by_group"]["Worst group"] == pytest.approx(100 * sum(worst) / len(worst))
    assert {"Left over", "Left over, balanced", "Left over, worst group"} <= fedavg["by_group"].keys()

    assert call(["table", str(runs), "--format", "json", "--score", "balanced"]) == 0
    balanced = json.loads(capsys.readouterr().out)
    assert balanced["score"] == "balanced" and balanced["rows"][0]["cases"]["0.3"]["mean"] == 50
    assert balanced["rows"][1]["average"] == pytest.approx(fedavg["by_group"]["Balanced"])
    for form in ("md", "latex", "csv"):
        assert call(["table", str(runs), "--format", form]) == 0
        assert "Worst group" in capsys.readouterr().out
    assert call(["table", str(runs), "--score", "worst-group"]) == 0
    assert "worst-group accuracy" in capsys.readouterr().out


def test_a_table_without_groups_refuses_their_scores(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["table", "rc_mnist", "--score", "balanced"]) == 2
    assert "have groups" in capsys.readouterr().err


def test_a_model_that_knows_only_its_client_scores_as_a_constant() -> None:
    there = [[50, 10, 10, 30], [5, 1, 40, 54]]
    assert balanced_accuracy(constant_hits(there, [0, 1]), there) == 0.5
    assert worst_group_accuracy(constant_hits(there, [0, 1]), there) == 0


def test_the_executor_is_measured_once_recorded_and_kept_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "birds.toml").write_text(FILE)
    both = read_experiment(tmp_path / "birds.toml", ["seeds=[0]", "training.rounds=4"])
    experiment = dataclasses.replace(both, trials=both.trials[1:])
    for slower in ("vmap", "loop"):
        out = tmp_path / slower
        # The clock is replaced, not the work: which one is faster here must not decide what the test sees.
        measured = {"vmap": 1.0, "loop": 1.0} | {slower: 2.0}
        monkeypatch.setattr(training_room, "time_executors", lambda *given, seconds=measured: seconds)
        whole = train(experiment, out / "whole", Lines(lambda line: None))

        class Stop(Exception):
            pass

        def stop(line: str) -> None:
            if "round 2" in line:
                raise Stop

        with pytest.raises(Stop):
            train(experiment, out / "killed", Lines(stop))
        monkeypatch.setattr(training_room, "time_executors", None)  # not asked again
        goes_on = train(experiment, out / "killed", Lines(lambda line: None))
        for ours, theirs in zip(whole, goes_on, strict=True):
            one, two = read_run(ours), read_run(theirs)
            assert one is not None and two is not None
            assert one.start["executor"] == {"used": fastest(measured), "seconds": measured}
            assert one.start["asked"]["training"]["executor"] == "auto"
            assert untimed(one.evaluations) == untimed(two.evaluations)


def untimed(events: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in event.items() if key != "seconds"} for event in events]


def test_measuring_times_both_executors(runs: Path) -> None:
    for run in find_runs(runs):
        seconds = run.start["executor"]["seconds"]
        assert set(seconds) == {"vmap", "loop"} and all(0 < value < math.inf for value in seconds.values())
        assert run.start["executor"]["used"] == fastest(seconds)


def test_the_published_experiment_at_a_tiny_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The very file, with drawn birds: two methods of it are enough to show that every stage takes photographs."""
    text = (ROOT / "experiments" / "waterbird.toml").read_text()
    head, *methods = text.split("[[algorithm]]")
    assert len(methods) == 12
    chosen = [entry for entry in methods if 'name = "fedavg"' in entry or 'name = "irm_ft"' in entry]
    (tmp_path / "waterbird.toml").write_text("[[algorithm]]".join([head, *chosen]))
    small = ['data.benchmark="drawn_birds"', "data.size=16", "data.holdout=6", "model.width=2", "training.rounds=2"]
    small += ["data.train_per_client=16", "data.test_per_client=8", "data.birds=60", "data.backgrounds=120"]
    small += ["data.p_test=[0.1, 0.5]", "algorithm.irm_ft.finetune_steps=2"]
    small += ["training.batch_size=8", "training.evaluate_every=1", 'training.device="cpu"', 'training.executor="loop"']
    arguments = [str(tmp_path / "waterbird.toml"), "--out", str(tmp_path / "out"), "--trials", "2", "--finalists", "1"]
    arguments += ["--seeds", "101,102", *(part for key in small for part in ("--set", key))]
    assert reproduce(arguments) == 0
    said = capsys.readouterr().out
    assert "search.jsonl.xz: 4 runs made in" in said and f"`perinvfl table {tmp_path / 'out'}` shows it." in said
    for rule in ("source", "leave-one-client-out", "oracle"):
        assert call(["table", str(tmp_path / "out"), "--rule", rule, "--format", "json"]) == 0
        table = json.loads(capsys.readouterr().out)
        assert [row["method"] for row in table["rows"]] == ["Majority class", "FedAvg", "IRM-FT"]
        assert table["seeds"] == 2
    assert reproduce([*arguments[:3], "--seeds", "one"]) == 2


def test_the_global_model_stands_beside_personal_ones_by_the_same_score() -> None:
    counts = {"0.1": [[3, 1, 2, 2], [4, 4, 1, 1]]}  # client by group: landbirds on land and water, waterbirds likewise
    right = {"0.1": [[3, 0, 1, 1], [2, 4, 0, 1]]}
    start = {"event": "start", "notes": {"groups": {"counts": counts}}}
    event = {"event": "evaluation", "round": 10, "personal": {"0.1": [1.0, 1.0]}, "global": {"0.1": [5 / 8, 7 / 10]}}
    run = Run(Path("."), [start, event | {"global groups": right}])
    balanced = ((3 / 4 + 2 / 4) / 2 + (6 / 8 + 1 / 2) / 2) / 2
    assert global_average([run], ("0.1",), [10], "balanced") == pytest.approx(100 * balanced)
    assert global_average([run], ("0.1",), [10], "accuracy") == pytest.approx(100 * (5 / 8 + 7 / 10) / 2)
