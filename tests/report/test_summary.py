"""The first screen of a report on own data: whether to use the models, which, and how good they are."""

import re
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from perinvfl.cli import call
from perinvfl.runs.predictions import PREDICTIONS
from perinvfl.runs.records import find_runs
from perinvfl.scoring.run_scores import run_scores
from perinvfl.scoring.sample_scores import SCORERS, Sample
from tests.audit.made_tables import planted_csv
from tests.browser import CONTRAST, opened

ROOT = Path(__file__).parents[2]
FILE = """
name = "own"
seeds = {seeds}
[data]
benchmark = "file"
path = "{path}"
label = "ill"
client = "{client}"
context = "{context}"
{data}
[model]
hidden = [8]
[training]
rounds = {rounds}
evaluate_every = 10
device = "cpu"
"""
FEDAVG = '[[algorithm]]\nname = "fedavg"\nlearning_rate = 0.5\nlocal_steps = 5\n'
RECOMMENDED = '[[algorithm]]\nname = "recommended"\n'


def reported(
    folder: Path, path: Path, methods: str, client: str = "site", context: str = "year", data: str = "",
    rounds: int = 30, seeds: str = "[0]",
) -> Path:  # fmt: skip
    settings = {"path": path, "client": client, "context": context, "data": data, "rounds": rounds, "seeds": seeds}
    (folder / "own.toml").write_text(FILE.format(**settings) + methods)
    assert call(["run", str(folder / "own.toml"), "--out", str(folder), "--quiet"]) == 0
    assert call(["report", str(folder / "own"), "-o", str(folder / "report.html")]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def good(made_sites: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    methods, held_out = FEDAVG + RECOMMENDED, "test_contexts = [2023]"
    return reported(folder, made_sites, methods, "hospital", data=held_out, rounds=60, seeds="[0, 1]")


@pytest.fixture(scope="module")
def bad(made_sites: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    return reported(folder, made_sites, FEDAVG, "hospital", data="test_contexts = [2023]", rounds=60)


def first_line(page: Page) -> str:
    return page.locator("main p").first.inner_text()


def test_which_model_to_use_and_what_was_found(browser: Browser, good: Path) -> None:
    with opened(browser, good) as page:
        said = "Recommended does better than a constant answer: in year 2023, it has an accuracy of 7"
        assert first_line(page).startswith(said)
        text = page.locator("main").inner_text()
        assert "Of these models, use Recommended. It is best here, with an accuracy of 7" in text
        assert "and no other model lies within its 95 % interval" in text
        assert "FedAvg is no better than a constant answer here: do not use it." in text
        assert page.locator(".verdict.fine").count() == 1, "there is a test on a year that was held out"
        assert "A constant answer gives every row of a hospital the label that is most common in its" in text
        assert "scanner changes its meaning between contexts (year)" in text
        assert "5 sites (hospital), 1400 rows to train on." in text
        sites = page.get_by_role("region", name="Sites", exact=True)
        heads = ["Rows tested on, year 2023", "Rows tested on, held out at random", "ill = no", "ill = yes"]
        assert sites.locator("thead th").all_inner_texts()[2:] == heads
        cells = sites.locator("tbody tr").first.locator("td").all_inner_texts()
        page.evaluate("document.querySelectorAll('details').forEach((e) => e.open = true)")
        for case, tested in (("year 2023", cells[1]), ("Rows held out at random", cells[2])):
            by_site = page.get_by_role("region", name=f"By site, {case}").locator("tbody tr").first
            assert by_site.locator("td").first.inner_text() == tested
        shares = cells[3:]
        assert sum(int(share.split(" ")[0]) for share in shares) == pytest.approx(100, abs=1)


def test_scores_confusion_and_calibration_are_those_of_the_run(browser: Browser, good: Path) -> None:
    runs = [run for run in find_runs(good.parent / "own") if run.asked["algorithm"]["name"] == "recommended"]
    scored = [run_scores(run) for run in sorted(runs, key=lambda run: run.asked["seed"])]
    with opened(browser, good) as page:
        table = page.get_by_role("region", name="Scores, year 2023")
        shown = {
            row.locator("th").inner_text(): row.locator("td").all_inner_texts()
            for row in table.locator("tbody tr").all()
        }
        mean = [found["cases"]["2023"]["mean"] for found in scored]
        for title, name, factor in (
            ("Accuracy", "accuracy", 100),
            ("AUROC", "auroc", 1),
            ("Sensitivity", "sensitivity", 100),
        ):
            value = factor * sum(one[name]["value"] for one in mean) / 2
            assert float(shown[title][0].split(" ")[0]) == pytest.approx(value, abs=0.051 if factor == 100 else 0.0051)
            low, high = (float(end) for end in shown[title][1].split(" to "))
            assert low < value < high and shown[title][2]
        counts = page.get_by_role("region", name="Confusion").first.locator("td.right, td.wrong").all_inner_texts()
        assert [int(count) for count in counts] == [
            count for row in scored[0]["cases"]["2023"]["confusion"] for count in row
        ]
        bins = scored[0]["cases"]["2023"]["calibration"]
        assert page.locator("figure.square").first.locator("circle").count() == len(bins)
        told = page.locator("figure.square svg").first.get_attribute("aria-label") or ""
        assert f"predicted {100 * bins[0]['predicted']:.0f} %" in told


def test_contexts_are_bars_at_each_site_in_the_words_of_the_data(
    browser: Browser, good: Path, made_sites: Path
) -> None:
    with opened(browser, good) as page:
        assert page.locator("#h-spectrum").inner_text() == "Accuracy by hospital"
        assert page.locator("#spectrum rect.bar").count() == 2 * 2 * 6  # methods, tests; all and five hospitals
        assert page.locator("#spectrum line.whisker").count() == 24
        page.locator("#client").select_option(label="north")
        assert page.locator("#spectrum rect.bar").count() == 4
        page.locator("#client").select_option(label="all 5 (mean)")
        page.locator("#spectrum").focus()
        page.keyboard.press("ArrowRight")
        assert re.match(r"FedAvg, 2023, all \(mean\): \d+\.\d\d %", page.locator("#spectrum-readout").inner_text())
        page.evaluate("document.querySelectorAll('details').forEach((e) => e.open = true)")
        text = page.locator("body").inner_text()
        assert made_sites.name in text and str(made_sites) not in text, "where a file lies is nobody's business"
        assert "p = " not in text and "spectrum" not in text.lower()
        assert page.locator("#numbers thead th").all_inner_texts() == ["Method", "2023", "same contexts"]


def test_long_names_of_columns_are_read_as_words(browser: Browser, made_sites: Path, tmp_path: Path) -> None:
    """Sites by what they are ("hospitals", not "Hospital names"); no axis is cut off; axe finds no error."""
    header, rest = made_sites.read_text().split("\n", 1)
    table = tmp_path / "visits.csv"
    table.write_text(header.replace("hospital", "Hospital name") + "\n" + rest)
    file = reported(tmp_path, table, FEDAVG, "Hospital name", data="test_contexts = [2023]", rounds=10)
    with opened(browser, file) as page:
        text = page.locator("main").inner_text()
        assert "Accuracy by hospital" in text and "mean over 5 hospitals" in text and "names;" not in text
        for axis in page.locator("svg.forest text").all():
            words, drawn = axis.bounding_box(), axis.locator("xpath=ancestor::*[local-name()='svg']").bounding_box()
            assert words and drawn and words["x"] >= drawn["x"] - 1
            assert words["x"] + words["width"] <= drawn["x"] + drawn["width"] + 1
        page.evaluate("document.querySelectorAll('details').forEach((part) => part.open = true)")
        found = Axe().run(page).response["violations"]
    assert not [(fault["id"], fault["nodes"][0]["html"]) for fault in found]


def test_models_that_are_no_better_than_a_constant_are_not_to_be_used(browser: Browser, bad: Path) -> None:
    with opened(browser, bad) as page:
        line = page.locator("main p").first
        assert line.inner_text().startswith(
            "Do not use these models: in year 2023, none of them does better than a constant"
        )
        red, green, blue = (
            int(part) for part in re.findall(r"\d+", line.evaluate("e => getComputedStyle(e).color"))[:3]
        )
        assert red > 150 > green and blue < 100
        assert "Use none of these models." in page.locator("main").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_on_a_phone(scheme: str, browser: Browser, good: Path, bad: Path) -> None:
    phone = {"viewport": {"width": 400, "height": 800}, "is_mobile": True, "has_touch": True, "color_scheme": scheme}
    for file in (good, bad):
        with opened(browser, file, **phone) as page:
            page.evaluate("document.querySelectorAll('details').forEach((e) => e.open = true)")
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
            assert page.evaluate(CONTRAST) == []
            wide = "[...document.querySelectorAll('table')].filter((t) => t.scrollWidth > 380 && !t.closest('.scroll'))"
            assert page.evaluate(f"{wide}.length") == 0


@pytest.mark.parametrize("settings", [{"shortcut": "none", "classes": 1}, {"classes": 3, "shortcut": "none"}], ids=str)
def test_other_tasks_and_one_context(settings: dict[str, object], browser: Browser, tmp_path: Path) -> None:
    table = planted_csv(tmp_path / "t.csv", 0, **settings)
    page_of = reported(tmp_path, table, RECOMMENDED, context="", data='ignore = ["year"]')
    with opened(browser, page_of) as page:
        assert "on rows held out at random" in first_line(page) and "95 % interval" in first_line(page)
        assert "Decide by a context that was held out" in first_line(page)
        assert page.locator(".verdict.mixed").count() == 1, "rows held out at random are no test of anything new"
        for mark in ("whisker", "constant"):
            ends = [float(line.get_attribute("x2") or 0) for line in page.locator(f"#spectrum line.{mark}").all()]
            assert ends and ends.count(max(ends)) == 1, f"a {mark} is not cut off where the chart ends"
        text = page.locator("main").inner_text()
        assert ("R²" in text) == (settings["classes"] == 1) and ("AUROC" in text) == (settings["classes"] == 3)
        assert page.locator("figure.square").count() == 0, "calibration is drawn for two classes"
        assert "Columns left out: year." in text or "ignored" not in find_runs(tmp_path / "own")[0].notes


def test_scores_of_three_classes_are_said_to_be_means_over_them(
    browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = planted_csv(tmp_path / "t.csv", 0, classes=3, shortcut="none", rows=120)
    page_of = reported(tmp_path, table, FEDAVG, context="", data='ignore = ["year"]')
    (case,) = run_scores(find_runs(tmp_path / "own")[0])["cases"].values()
    mean = case["mean"]
    with opened(browser, page_of) as page:
        rows = {
            row.locator("th").inner_text(): row.locator("td").all_inner_texts()
            for row in page.get_by_role("region", name=re.compile("^Scores")).first.locator("tbody tr").all()
        }
    assert not any("ill = class" in cell for name, cells in rows.items() for cell in cells), rows
    assert rows["Sensitivity"][2] == "of 100 rows of a class, how many are recognised, averaged over the 3 classes"
    assert "0.67 is giving all 3 classes the same probability" in rows["Brier score"][2]
    assert mean["sensitivity"]["value"] == pytest.approx(mean["balanced"]["value"])
    equal = Sample("multiclass", np.arange(300.0) % 3, np.zeros((300, 3)))
    assert SCORERS["brier"](equal, np.ones((1, 300)), 0.5)[0] == pytest.approx(1 - 1 / 3)
    capsys.readouterr()
    assert call(["table", str(tmp_path / "own"), "--score", "sensitivity"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Sensitivity: share of a class that is recognised, mean over the classes." in said


def test_runs_without_predictions_still_have_a_report(browser: Browser, made_sites: Path, tmp_path: Path) -> None:
    page_of = reported(tmp_path, made_sites, FEDAVG, "hospital", rounds=20)
    (run,) = find_runs(tmp_path / "own")
    (run.folder / PREDICTIONS).unlink()
    assert call(["report", str(tmp_path / "own"), "-o", str(page_of)]) == 0
    with opened(browser, page_of) as page:
        assert "holds neither scores nor predictions of single samples" in page.locator("main").inner_text()
        assert page.locator("#spectrum line.whisker").count() == 0


def test_a_reference_is_never_the_best(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(
        'name = "r"\n[data]\nbenchmark = "planted"\np_test = [0.0, 0.1]\n[training]\nrounds = 20\ndevice = "cpu"\n'
        + FEDAVG
        + FEDAVG.replace("0.5", "0.4").replace('"fedavg"', '"fedavg"\nlabel = "Other"')
        + FEDAVG.replace('"fedavg"', '"fedavg"\nlabel = "Without"\ndata.without_shortcut = true')
    )
    assert call(["run", str(tmp_path / "r.toml"), "--out", str(tmp_path), "--quiet"]) == 0
    assert call(["report", str(tmp_path / "r"), "-o", str(tmp_path / "r.html")]) == 0
    with opened(browser, tmp_path / "r.html") as page:
        rows = {row.locator("th").inner_text(): row for row in page.locator("#numbers tbody tr").all()}
        values = {name: float(row.locator("td").first.inner_text().split(" ")[0]) for name, row in rows.items()}
        assert max(values, key=lambda name: values[name]) == "Without", "else this test shows nothing"
        assert rows["Without"].locator("td.best").count() == 0
        assert page.locator("#numbers td.best").count() > 0
        assert "Do not use these models" in first_line(page), "both lean on the shortcut"
