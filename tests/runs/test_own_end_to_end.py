"""Own data of every kind from the file to the table, as a user runs it."""

import csv
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from perinvfl.cli import call

HEAD = """
name = "own"
[data]
benchmark = "file"
path = "{path}"
{data}
[model]
{model}
[training]
rounds = {rounds}
batch_size = {batch}
[[algorithm]]
name = "ditto"
{more}
[[algorithm]]
name = "perinvfl"
penalty_weight = 1.0
{more}
"""


def table_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert call(["table", str(folder), "--format", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    return {"measure": table["measure"], **{row["method"]: row for row in table["rows"]}}


def test_a_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(0)
    with open(tmp_path / "houses.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["town", "decade", "size", "age", "price"])
        for i in range(240):
            size, age = rng.gauss(100, 30), rng.gauss(40, 15)
            price = 2000 * size - 500 * age + rng.gauss(0, 4000)
            writer.writerow([f"town {i % 3}", 1990 + 10 * (i // 3 % 3), size, age, price])
    data = 'label = "price"\nclient = "town"\ncontext = "decade"\ntest_contexts = [2010]'
    rates = "learning_rate = 0.05\npersonal_learning_rate = 0.05\nlocal_steps = 3"
    experiment = tmp_path / "own.toml"
    experiment.write_text(
        HEAD.format(path="houses.csv", data=data, model='kind = "linear"', rounds=60, batch=0, more=rates)
    )
    assert call(["run", str(experiment), "--out", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert "mean squared error by context" in shown and "label's variance" in shown
    table = table_of(tmp_path / "runs/own", capsys)
    assert table["measure"] == "mean squared error"
    assert 0.5 < table["Constant"]["average"] < 2
    assert table["Ditto"]["average"] < 0.1  # the rule is linear and the noise small
    assert table["Ditto"]["worst_client"] >= table["Ditto"]["average"]  # errors: the worst is the largest
    for form in ("md", "csv", "latex"):
        assert call(["table", str(tmp_path / "runs/own"), "--format", form]) == 0
    assert call(["plot", str(tmp_path / "runs/own")]) == 2
    assert "Figures show accuracy" in capsys.readouterr().err


def test_photographs_of_three_classes_with_a_network_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(0)
    for client in ("a", "b"):
        for context in ("day", "night"):
            for shade, label in ((30, "dark"), (120, "grey"), (220, "light")):
                folder = tmp_path / "photos" / client / context / label
                folder.mkdir(parents=True)
                for i in range(8):
                    value = shade + rng.randint(-20, 20)
                    Image.new("RGB", (10, 12), (value, value, 60 if context == "day" else 10)).save(folder / f"{i}.png")
    (tmp_path / "photo_net.py").write_text(
        "from torch import nn\n\n\ndef build(shape, outputs):\n"
        "    layers = [nn.Conv2d(shape[0], 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten()]\n"
        "    return nn.Sequential(*layers, nn.Linear(6 * 6 * 6, outputs))\n"
    )
    file = tmp_path / "own.toml"
    for executor in ("loop", "vmap"):
        text = HEAD.format(
            path="photos", data='test_contexts = ["night"]\nimage_size = 8',
            model='kind = "module"\nbuild = "photo_net:build"', rounds=15, batch=8, more="local_steps = 3",
        )  # fmt: skip
        file.write_text(text.replace("batch_size", f'executor = "{executor}"\nbatch_size'))
        assert call(["run", str(file), "--out", str(tmp_path / executor)]) == 0
    looped, batched = (table_of(tmp_path / executor / "own", capsys) for executor in ("loop", "vmap"))
    assert looped["Constant"]["cases"]["night"]["mean"] == pytest.approx(100 / 3)
    assert looped["Ditto"]["average"] > 60
    assert math.isclose(looped["Ditto"]["average"], batched["Ditto"]["average"], abs_tol=5)
