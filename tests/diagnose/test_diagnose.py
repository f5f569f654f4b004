"""The diagnosis names the planted shortcut, clears the innocent columns, and says plainly what cannot be known."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from perinvfl.cli import call
from perinvfl.diagnose import diagnose, measures
from perinvfl.diagnose.diagnosis import diagnose_client
from perinvfl.learning import risks
from perinvfl.runs.loaded import open_run
from tests.commands import tiny_file
from tests.planted import SITES, planted_file


def trained(folder: Path, **settings: Any) -> Path:
    assert call(["run", str(planted_file(folder, **settings)), "--out", str(folder / "runs")]) == 0
    return next((folder / "runs").rglob("events.jsonl")).parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ditto, which leans on whatever helps; the last site has one context."""
    return trained(tmp_path_factory.mktemp("diagnose"), data="single = true", rounds=30)


def test_it_names_the_planted_column_and_no_other(run: Path) -> None:
    found = diagnose(run)
    assert [client.client for client in found.clients] == list(SITES)
    for client in found.clients:
        assert [column.name for column in client.shortcuts] == ["badge"], client.client
        badge = client.shortcuts[0]
        assert badge.relation["day"] > 0.8 and badge.relation["night"] < -0.5
        assert (
            "badge" in client.sentences["shortcut"]
            and f"{badge.relation['night']:+.2f} in night" in (client.sentences["shortcut"])
        )
        causes = {column.name: column for column in client.columns}
        assert causes["age"].leans and not causes["age"].differs, "a cause is leaned on and stays as it is"
        assert not causes["noise"].leans
    assert found.summary[0] == "Shortcut column: badge, at 5 of 5 clients."


def test_the_numbers_are_those_of_the_models(run: Path) -> None:
    opened, found = open_run(run), diagnose(run)
    for i, client in enumerate(found.clients):
        assert [(context.name, context.seen) for context in client.contexts][-1] == ("night", False)
        night = client.contexts[-1]
        assert night.score == pytest.approx(opened.run.evaluations[-1]["personal"]["night"][i], abs=1e-4)
        test = opened.federation.tests["night"]
        logits = opened.model.apply(opened.lead(i), test.x[i])
        assert night.risk == pytest.approx(float(risks.losses("binary", logits, test.y[i]).mean()), abs=1e-5)
        spread = [context.risk for context in client.contexts]
        assert client.gap == pytest.approx(max(spread) - min(spread))
        assert client.agreement is not None and opened.shared is not None
        turned = next(shift for shift in client.shifts if shift.way == "columns")
        assert turned.then < turned.now - 0.1, "a model that leans on the badge fails when it turns round"
    again = diagnose(run)
    assert again == found, "the same run, the same diagnosis"


def test_one_context_is_said_to_be_one(run: Path) -> None:
    *others, last = diagnose(run).clients
    assert last.gap_seen is None and last.hint is not None
    assert "nothing can be compared" in last.sentences["invariance"]
    assert last.sentences["hint"].startswith("Hint only:")
    for client in others:
        assert client.gap_seen is not None and client.hint is None and "hint" not in client.sentences


def test_every_measure_gets_a_sentence_in_text_and_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert call(["diagnose", str(run)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert call(["diagnose", str(run), "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [client["shortcuts"] for client in printed["clients"]] == [["badge"]] * 5
    for client in printed["clients"]:
        assert {"risk", "calibration", "invariance", "agreement", "shortcut", "shift"} <= set(client["sentences"])
        for sentence in client["sentences"].values():
            assert " ".join(sentence.split()) in text


def test_a_model_that_cannot_lean_on_the_column_is_cleared(tmp_path: Path) -> None:
    """Trained where the badge says nothing (its relation still differs at night), no shortcut may be named."""
    run = trained(tmp_path, rounds=30)
    opened = open_run(run)
    assert opened.personal is not None
    for params in opened.personal:
        params["0.weight"][:, 2] = 0
    with torch.no_grad():
        client = diagnose_client(opened, 0)
    badge = next(column for column in client.columns if column.name == "badge")
    assert badge.differs and not badge.leans and not client.shortcuts


def test_images_classes_and_regression(tmp_path: Path) -> None:
    cases = {
        "binary": (1, "[2, 3, 3]", '["0.1","0.2","0.3"]'),
        "multiclass": (3, "[5]", '["a"]'),
        "regression": (1, "[5]", '["a"]'),
    }
    for task, (outputs, shape, tests) in cases.items():
        settings = [f"data.task={task}", f"data.outputs={outputs}", f"data.shape={shape}", f"data.tests={tests}"]
        settings.append("algorithm.penalty_weight=0.1")
        options = [part for setting in settings for part in ("--set", setting)]
        assert call(["run", str(tiny_file(tmp_path)), "--out", str(tmp_path / task), *options]) == 0
        found = diagnose(next((tmp_path / task).rglob("events.jsonl")).parent)
        assert all(client.sentences["risk"] for client in found.clients)
        of_classes = {column.of_class for client in found.clients for column in client.columns}
        assert of_classes <= ({"0", "1", "2"} if task == "multiclass" else {""})
        assert all(bool(client.columns) == (shape == "[5]") for client in found.clients)
        ways = {shift.way for client in found.clients for shift in client.shifts}
        assert ("spectrum" in ways) == (task == "binary") and "contexts" in ways


def test_held_out_data_are_used_where_there_are_enough(tmp_path: Path) -> None:
    for holdout, enough in ((60, True), (6, False)):
        options = ["--set", "data.contexts=2", "--set", "data.samples=60", "--set", f"data.holdout={holdout}"]
        options += ["--set", "data.uneven=false", "--out", str(tmp_path / str(holdout))]
        assert call(["run", str(tiny_file(tmp_path)), *options]) == 0
        for client in diagnose(next((tmp_path / str(holdout)).rglob("events.jsonl")).parent).clients:
            assert client.held_out == enough and ("held out of training" in client.sentences["risk"]) == enough
            assert [context.samples for context in client.contexts[:2]] == ([30, 30] if enough else [33, 33])


def test_rows_held_out_at_random_are_no_context_it_never_trained_on(made_sites: Path, tmp_path: Path) -> None:
    (tmp_path / "sites.csv").write_text(made_sites.read_text())
    (tmp_path / "sites.toml").write_text(
        '[data]\nbenchmark = "file"\npath = "sites.csv"\nlabel = "ill"\nclient = "hospital"\ncontext = "year"\n'
        'test_contexts = [2023]\n[training]\nrounds = 20\n[[algorithm]]\nname = "fedavg"\nlearning_rate = 0.5\n'
    )
    assert call(["run", str(tmp_path / "sites.toml"), "--out", str(tmp_path / "runs")]) == 0
    found = diagnose(next((tmp_path / "runs").rglob("events.jsonl")).parent)
    said = " ".join(sentence for client in found.clients for sentence in client.sentences.values())
    assert "same contexts" not in said and "in 2023, a context it never trained on" in said
    assert "on rows held out at random from its training contexts" in said
    assert "With the test contexts and the rows held out at random it differs by" in said
    for client in found.clients:
        assert [(c.name, c.familiar) for c in client.contexts if not c.seen] == [
            ("2023", False),
            ("same contexts", True),
        ]
    assert "rows held out at random included" in found.summary[-1]


def test_an_unfinished_run_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "events.jsonl").write_text("".join(lines[:-1]))
    (tmp_path / "checkpoint.pt").write_bytes((run / "checkpoint.pt").read_bytes())
    capsys.readouterr()
    assert call(["diagnose", str(tmp_path)]) == 2
    assert "is not finished" in capsys.readouterr().err


def test_calibration_error_by_hand() -> None:
    y = torch.tensor([1.0, 1.0, 0.0, 0.0])
    sure = torch.full((4, 1), 100.0)  # says 1 with certainty, right half of the time
    assert measures.calibration_error("binary", sure, y) == pytest.approx(0.5)
    assert measures.overconfidence("binary", sure, y) == pytest.approx(0.5)
    honest = torch.zeros(4, 1)
    assert measures.calibration_error("binary", honest, y) == pytest.approx(0.0)
    assert measures.calibration_error("regression", torch.tensor([[2.0], [4.0]]), torch.tensor([1.0, 2.0])) == 0.5
    logits = torch.tensor([[2.0], [-1.0], [0.5], [-3.0]])
    w = torch.ones(1, requires_grad=True)
    (slope,) = torch.autograd.grad(risks.losses("binary", w * logits, y).mean(), w)
    assert measures.penalty("binary", logits, y) == pytest.approx(float(slope**2), rel=1e-5)


def test_columns_are_turned_round_and_nothing_else() -> None:
    source = torch.Generator().manual_seed(0)
    y = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0])
    x = torch.stack([y, torch.arange(5.0)], 1)
    turned = measures.reverse_columns("binary", x, y, [0], source)
    assert turned is not None
    assert torch.equal(turned[:, 0], 1 - y) and torch.equal(turned[:, 1], x[:, 1])
    assert measures.reverse_columns("binary", x, torch.ones(5), [0], source) is None
    mirrored = measures.reverse_columns("regression", x, torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0]), [1], source)
    assert mirrored is not None and mirrored[:, 1].tolist() == [0.0, 3.0, 4.0, 1.0, 2.0]
