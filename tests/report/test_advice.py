"""Which model a report advises, by one rule for accuracies and for errors, and how it says so."""

from pathlib import Path
from typing import Any

import pytest

from perinvfl.cli import call
from perinvfl.report import gather
from perinvfl.report.advice import SAME, advise, recommendation, verdict
from tests.audit.made_tables import planted_csv

Known = dict[str, tuple[float, tuple[float, float] | None]]


def method(name: str, value: float, span: tuple[float, float] | None) -> dict[str, Any]:
    spans = {"2023": {"mean": list(span), "clients": {}}} if span else {}
    return {
        "name": name,
        "algorithm": name.lower(),
        "cases": {"2023": [value, 0.0]},
        "spans": spans,
        "reference": False,
    }


def section_of(known: Known, constant: float, unit: str) -> dict[str, Any]:
    return {
        "own": True,
        "unit": unit,
        "larger_is_better": unit == "%",
        "spectrum": ["2023"],
        "classes": ["no", "yes"] if unit else [],
        "words": {"client": "hospital", "context": "year"},
        "constant": {"cases": {"2023": constant}, "clients": [{"2023": constant}]},
        "views": [{"methods": [method(name, *numbers) for name, numbers in known.items()]}],
    }


def advised(known: Known, constant: float, unit: str = "%") -> str:
    section = section_of(known, constant, unit)
    methods = section["views"][0]["methods"]
    return recommendation(section, methods, advise(section, methods))


def test_of_models_that_cannot_be_told_apart_recommended_is_preferred_and_the_page_says_so() -> None:
    known: Known = {"Recommended": (80.6, (74, 87)), "FedAvg": (80.9, (75, 87)), "Ditto": (82.2, (76.1, 87.8))}
    said = advised(known, 47.6)
    assert said.startswith(
        "Of these models, use Recommended. Ditto is best here, with an accuracy of 82.2 %, but Recommended, with an "
        "accuracy of 80.6 %, lies within its 95 % interval (76.1 to 87.8): with so few rows the difference may be "
        "chance. Among models that cannot be told apart, Recommended is preferred, because it looks for shortcuts. "
        "FedAvg may be as good: it lies in that interval, too. "
    )
    assert "was chosen by looking" not in said


def test_errors_follow_the_same_rule() -> None:
    known: Known = {"FedAvg": (0.313, (0.21, 0.46)), "Ditto": (0.308, (0.207, 0.452)), "Recommended": (0.6, (0.5, 0.7))}
    assert advised(known, 0.9, unit="").startswith(
        "Of these models, use Ditto. It is best here, with a mean squared error of 0.308. FedAvg may be as good: it "
        "lies within its 95 % interval (0.207 to 0.452), and with so few rows the difference may be chance. "
    )
    nearer: Known = {**known, "Recommended": (0.324, (0.22, 0.47))}
    assert advised(nearer, 0.9, unit="").startswith("Of these models, use Recommended. Ditto is best here")


def test_recommended_is_not_preferred_where_it_is_no_better_than_a_constant() -> None:
    known: Known = {"Recommended": (60.0, (50, 70)), "FedAvg": (65.0, (58, 72))}
    said = advised(known, 61.0)
    assert said.startswith("Of these models, use FedAvg.") and "Recommended is no better than a constant" in said


def test_without_intervals_the_best_is_named_and_that_none_is_known() -> None:
    said = advised({"Recommended": (60.0, None), "FedAvg": (65.0, None)}, 50.0)
    best = "Of these models, use FedAvg. It is best here, with an accuracy of 65.0 %; no interval is known"
    assert said.startswith(best)


def test_one_model_is_compared_with_none() -> None:
    said = advised({"FedAvg": (65.0, (60, 70))}, 50.0)
    assert said.startswith("Use FedAvg. ") and "compared" not in said


def test_an_error_that_may_be_that_of_a_constant_is_uncertain() -> None:
    section = section_of({"FedAvg": (0.8, (0.6, 1.1))}, 0.9, "")
    found = verdict(section, {})
    assert found and found["kind"] == "mixed" and "it is not certain" in found["text"]
    better = verdict(section_of({"FedAvg": (0.4, (0.3, 0.5))}, 0.9, ""), {})
    assert better and better["kind"] == "fine"


@pytest.mark.parametrize("constant", [48.0, 60.0])
def test_a_constant_answer_below_one_half_is_explained(constant: float) -> None:
    found = verdict(section_of({"FedAvg": (65.0, (61, 70))}, constant, "%"), {})
    assert found and "most common in its training rows" in found["constant"]
    assert ("less than half" in found["constant"]) == (constant < 50)


def test_squared_errors_have_intervals_and_gaps_are_said_by_kind(tmp_path: Path) -> None:
    table = planted_csv(tmp_path / "t.csv", 0, classes=1, shortcut="none", rows=120)
    header, *rows = table.read_text().splitlines()
    place = header.split(",").index("x2")
    cells = [row.split(",") for row in rows]
    for number, row in enumerate(cells):
        row += [["", "a", "b"][number % 3]]
        row[place] = "" if number % 10 == 0 else row[place]
    table.write_text("\n".join([f"{header},ward", *(",".join(row) for row in cells)]))
    (tmp_path / "t.toml").write_text(
        'name = "t"\nseeds = [0, 1]\n[data]\nbenchmark = "file"\npath = "t.csv"\nlabel = "ill"\nclient = "site"\n'
        'context = ""\nignore = ["year"]\n[training]\nrounds = 20\ndevice = "cpu"\n'
        '[[algorithm]]\nname = "fedavg"\nlearning_rate = 0.1\n'
    )
    assert call(["run", str(tmp_path / "t.toml"), "--out", str(tmp_path / "runs"), "--quiet"]) == 0
    (section,) = gather([tmp_path / "runs/t"])["sections"]
    (fedavg,) = section["views"][0]["methods"]
    spans = fedavg["spans"][SAME]
    low, high = spans["mean"]
    assert 0 < low < fedavg["cases"][SAME][0] < high < 2 * fedavg["cases"][SAME][0]
    assert list(spans["clients"]) == section["clients"]
    facts = section["summary"]["facts"]
    numbers, categories = (next(fact for fact in facts if f"{name} in" in fact) for name in ("x2", "ward"))
    total, gaps = len(cells), sum(row[place] == "" for row in cells)
    assert "median" in numbers and numbers.endswith(f"says where: x2 in {gaps} of all {total} rows, tests included.")
    missing = sum(row[-1] == "" for row in cells)
    assert categories == (
        f"A missing category counts as a level of its own: ward in {missing} of all {total} rows, tests included."
    )
