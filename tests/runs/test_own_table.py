"""From a file of one's own to diagnosis, report and exported model, in every form a table may ask for."""

import csv
import runpy
import sys
from pathlib import Path

import pytest
import torch

from perinvfl.cli import call
from perinvfl.diagnose import diagnose
from perinvfl.export.formats import FORMATS, read_model
from perinvfl.report import gather
from perinvfl.runs.loaded import open_run
from tests.commands import ROOT

TABLE = """
name = "sites"
[data]
benchmark = "file"
path = "sites.csv"
label = "{label}"
client = "hospital"
context = "year"
{data}
[model]
{model}
[training]
rounds = 30
[[algorithm]]
name = "ditto"
learning_rate = {rate}
personal_learning_rate = {rate}
local_steps = 3
"""

OWN = """
from torch import nn

def build(shape, outputs):
    return nn.Sequential(nn.LayerNorm(shape), nn.Linear(shape[0], outputs))
"""


def trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, label: str, data: str, model: str, rate: float
) -> list[Path]:
    """The run folders of a table of five hospitals and three years, written by the example."""
    monkeypatch.setattr(sys, "argv", ["make_sites.py", str(folder / "sites.csv"), "--each", "60"])
    runpy.run_path(str(ROOT / "examples/make_sites.py"), run_name="__main__")
    (folder / "mine.toml").write_text(TABLE.format(label=label, data=data, model=model, rate=rate))
    assert call(["run", str(folder / "mine.toml"), "--quiet", "--out", str(folder / "runs")]) == 0
    return sorted(path.parent for path in (folder / "runs").rglob("events.jsonl"))


def columns_of(folder: Path, names: tuple[str, ...]) -> tuple[torch.Tensor, list[dict[str, str]]]:
    with open(folder / "sites.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return torch.tensor([[float(row[name]) for name in names] for row in rows]), rows


def test_the_shortcut_is_named_and_the_model_answers_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = trained(tmp_path, monkeypatch, "ill", 'test_contexts = ["2023"]', "hidden = [8]", 0.3)
    found = diagnose(run)
    assert found.summary[0].startswith("Shortcut column: scanner, at ")
    assert {column.name for client in found.clients for column in client.shortcuts} == {"scanner"}
    opened = open_run(run)
    names = opened.federation.schema.features
    x, rows = columns_of(tmp_path, names)
    for form in FORMATS:
        assert call(["export", str(run), "--client", "north", "-o", str(tmp_path / f"m.{form}")]) == 0
        answers = read_model(tmp_path / f"m.{form}")(x)["prediction"]
        held_out = [k for k, row in enumerate(rows) if (row["hospital"], row["year"]) == ("north", "2023")]
        right = [("no", "yes")[int(answers[k])] == rows[k]["ill"] for k in held_out]
        north = opened.clients.index("north")
        assert sum(right) / len(right) == pytest.approx(opened.run.evaluations[-1]["personal"]["2023"][north], abs=1e-4)


def test_a_quantity_is_told_in_its_own_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = 'ignore = ["ill"]\ntest_contexts = ["2023"]'
    (run,) = trained(tmp_path, monkeypatch, "pressure", data, "hidden = [4]", 0.02)
    assert call(["export", str(run), "--client", "1", "-o", str(tmp_path / "m.onnx")]) == 0
    predictor = read_model(tmp_path / "m.onnx")
    x, rows = columns_of(tmp_path, predictor.description.features)
    answers = predictor(x)["prediction"]
    truth = torch.tensor([float(row["pressure"]) for row in rows])
    assert abs(float(answers.mean() - truth.mean())) < 15, "some 120, and not some 0"
    (section,) = gather([tmp_path / "runs"])["sections"]
    assert "variance" in section["notes"][0] and not section["larger_is_better"]


def test_leave_one_context_out_is_one_method_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = trained(tmp_path, monkeypatch, "ill", "leave_one_context_out = true", "hidden = [4]", 0.3)
    assert len(runs) == 3
    (section,) = gather([tmp_path / "runs"])["sections"]
    (method,) = section["views"][0]["methods"]
    assert sorted(section["spectrum"]) == ["2021", "2022", "2023"] and set(section["clients"]) >= {"north", "west"}
    assert all(method["cases"][year][0] > 0 for year in section["spectrum"])
    assert [case["name"] for case in section["cases"]] == [*section["spectrum"], "same contexts"]
    (found,) = gather([tmp_path / "runs"], diagnosed=True)["diagnoses"]
    worst = min(section["spectrum"], key=lambda year: method["cases"][year][0])
    assert found["label"] == f"Ditto without {worst}"


def test_runs_of_different_data_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for year in ("2022", "2023"):
        (tmp_path / year).mkdir()
        trained(tmp_path / year, monkeypatch, "ill", f'test_contexts = ["{year}"]', "hidden = [4]", 0.3)
    for command in (["table", str(tmp_path)], ["plot", str(tmp_path)]):
        capsys.readouterr()
        assert call(command) == 2
        printed = capsys.readouterr().err
        assert "different test contexts: sites (2022) and sites (2023)" in printed and printed.count("\n") == 1
    assert len(gather([tmp_path])["sections"]) == 2


def test_a_refused_run_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run,) = trained(tmp_path, monkeypatch, "ill", "", "hidden = [4]", 0.3)
    wrong = ["--set", "model.kind=resnet18", "--out", str(tmp_path / "runs")]
    assert call(["run", str(tmp_path / "mine.toml"), *wrong]) == 2
    assert "takes images" in capsys.readouterr().err
    assert [path for path in run.parent.iterdir() if path.is_dir()] == [run]


def test_a_module_of_ones_own_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_here.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    model = 'kind = "module"\nbuild = "mine_here:build"'
    (run,) = trained(tmp_path, monkeypatch, "ill", 'test_contexts = ["2023"]', model, 0.3)
    opened = open_run(run)
    x, _ = columns_of(tmp_path, opened.federation.schema.features)
    mean, scale = torch.tensor(opened.federation.schema.mean), torch.tensor(opened.federation.schema.scale)
    want = torch.sigmoid(opened.predict(opened.lead(2), (x - mean) / scale)[:, 0])
    for form in FORMATS:
        assert call(["export", str(run), "--client", "3", "-o", str(tmp_path / f"m.{form}")]) == 0
        found = read_model(tmp_path / f"m.{form}", "mine_here:build")(x)["probability"][:, 1]
        torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-3)
