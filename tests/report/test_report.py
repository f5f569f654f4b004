"""The report in a real browser: clicked through, by keyboard alone, on a phone, in the dark, and without a network."""

import csv
import json
import re
from pathlib import Path
from statistics import fmean

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from perinvfl.cli import call
from perinvfl.results.paper import TABLES
from perinvfl.results.render import as_json
from perinvfl.results.table import make_table
from perinvfl.runs.event_log import Writer
from perinvfl.runs.records import find_runs, read_events
from tests.browser import CONTRAST, opened
from tests.commands import tiny_file
from tests.planted import SITES, planted_file

SECOND = '\n[[algorithm]]\nname = "fedavg"\nlearning_rate = 0.1\n'
THREE = '["0.1", "0.3", "0.5", "0.9"]'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds, four test contexts."""
    folder = tmp_path_factory.mktemp("runs")
    settings = ["--set", "seeds=[0, 1]", "--set", f"data.tests={THREE}"]
    assert call(["run", str(tiny_file(folder, more=SECOND)), "--out", str(folder), *settings]) == 0
    return folder / "tiny"


@pytest.fixture(scope="module")
def report(runs: Path) -> Path:
    file = runs.parent / "report.html"
    assert call(["report", str(runs), "-o", str(file)]) == 0
    return file


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diagnosed")
    assert call(["run", str(planted_file(folder, rounds=20)), "--out", str(folder)]) == 0
    run = next(folder.rglob("events.jsonl")).parent
    assert call(["report", str(run), "-o", str(folder / "report.html")]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("published") / "report.html"
    assert call(["report", "rc_mnist", "rc_fmnist", "-o", str(file)]) == 0
    return file


def cells(page: Page, table: str) -> dict[str, list[str]]:
    rows = page.locator(f"#{table} tbody tr")
    return {
        row.locator("th").inner_text(): [cell.split(" ")[0] for cell in row.locator("td").all_inner_texts()]
        for row in rows.all()
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("made", ["report", "diagnosed"])
def test_axe_finds_no_error(browser: Browser, made: str, scheme: str, request: pytest.FixtureRequest) -> None:
    with opened(browser, request.getfixturevalue(made), color_scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach((part) => part.open = true)")
        found = Axe().run(page).response["violations"]
    assert not [(fault["id"], fault["nodes"][0]["html"]) for fault in found]


def test_the_numbers_are_the_tables(browser: Browser, report: Path, runs: Path) -> None:
    rows = {row["method"]: row for row in as_json(make_table(find_runs(runs)))["rows"]}
    with opened(browser, report) as page:
        header = page.locator("#numbers thead th").all_inner_texts()
        assert header == ["Method", "Average", "Worst context", "0.1", "0.3", "0.5", "0.9"]
        shown = cells(page, "numbers")
        for method in ("PerInvFL", "FedAvg"):
            want = [
                rows[method]["average"],
                rows[method]["worst"],
                *(c["mean"] for c in rows[method]["cases"].values()),
            ]
            assert [float(cell) for cell in shown[method]] == pytest.approx(want, abs=0.006)
        clients = cells(page, "clients")
        assert fmean(map(float, clients["PerInvFL"][:-1])) == pytest.approx(rows["PerInvFL"]["average"], abs=0.01)
        assert float(clients["PerInvFL"][-1]) == min(map(float, clients["PerInvFL"][:-1]))
        best = max(("PerInvFL", "FedAvg"), key=lambda method: rows[method]["average"])
        assert f"{best} is best on average" in page.locator("#sentence").inner_text()


def test_clicking_through(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        lines = page.locator("#spectrum g.series")
        assert lines.count() == 2
        page.get_by_role("button", name="FedAvg").click()
        assert lines.count() == 1 and "FedAvg" not in cells(page, "numbers")
        page.get_by_role("button", name="None").click()
        assert lines.count() == 0
        page.get_by_role("button", name="All", exact=True).click()
        assert lines.count() == 2
        # Hover tells the point, a click picks the method out everywhere.
        mark = page.locator('#spectrum g[data-method="PerInvFL"] path').first
        box = mark.bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert re.search(r"^(PerInvFL|FedAvg), p = 0\.1: \d+\.\d\d %", page.locator("#tip").inner_text())
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert page.locator("#spectrum g.dim").count() == 1 and page.locator("#learning g.dim").count() == 1
        assert page.locator("#numbers tr.picked").count() == 1
        # A client's own page.
        whole = cells(page, "numbers")
        page.locator("#client").select_option(label="Client 2")
        assert cells(page, "numbers") != whole and "at Client 2" in page.locator("#sentence").inner_text()
        page.locator("#clients thead").get_by_role("button", name="Client 2").click()
        assert cells(page, "numbers") == whole
        # Learning curves of one test context and of the risk, sorting, settings.
        before = page.locator("#learning polyline").first.get_attribute("points")
        page.locator("#case").select_option(label="test context 0.9")
        middle = page.locator("#learning polyline").first.get_attribute("points")
        page.locator("#case").select_option(label="training risk of the global model")
        assert len({before, middle, page.locator("#learning polyline").first.get_attribute("points")}) == 3
        page.locator("#numbers thead").get_by_role("button", name="Average").click()
        order = [float(row[0]) for row in cells(page, "numbers").values()]
        assert order == sorted(order, reverse=True)
        assert page.locator('#numbers th[aria-sort="descending"]').inner_text() == "Average"
        page.get_by_text("Settings of every method").click()
        assert page.locator("#settings").get_by_text("algorithm.beta").is_visible()
        page.get_by_text("Environment").click()
        assert "torch" in page.locator("#environment").inner_text()
        assert "last round" in page.locator("#rule-words").inner_text()


def test_the_numbers_can_be_downloaded(browser: Browser, report: Path, runs: Path, tmp_path: Path) -> None:
    rows = {row["method"]: row for row in as_json(make_table(find_runs(runs)))["rows"]}
    with opened(browser, report) as page:
        for button, name in (("this table", "tiny-table.csv"), ("every number", "tiny-numbers.csv")):
            with page.expect_download() as waiting:
                page.get_by_role("button", name=f"Download {button}").click()
            assert waiting.value.suggested_filename == name
            waiting.value.save_as(tmp_path / name)
    table = list(csv.DictReader((tmp_path / "tiny-table.csv").read_text().splitlines()))
    assert [row["Method"] for row in table] == ["Constant answer", "PerInvFL", "FedAvg"]
    assert float(table[1]["Average"]) == pytest.approx(rows["PerInvFL"]["average"], abs=0.006)
    numbers = list(csv.DictReader((tmp_path / "tiny-numbers.csv").read_text().splitlines()))
    assert len(numbers) == 2 * 4 * (1 + 2 + 3)  # methods, test contexts; the mean, each seed, each client
    events = [run.evaluations[-1]["personal"]["0.3"][1] for run in find_runs(runs) if "personal" in run.evaluations[-1]]
    (found,) = (r for r in numbers if (r["method"], r["test_context"], r["client"]) == ("PerInvFL", "0.3", "Client 2"))
    assert float(found["value"]) == pytest.approx(100 * fmean(events), abs=1e-3)


def test_by_keyboard_alone(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "theme"
        page.keyboard.press("Enter")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        reach(page, "[data-method=FedAvg]")
        page.keyboard.press("Space")
        assert page.locator("#spectrum g.series").count() == 1
        assert page.evaluate("document.activeElement.dataset.method") == "FedAvg", "the focus must stay"
        page.keyboard.press("Space")
        reach(page, "#spectrum")
        readout = page.locator("#spectrum-readout")
        said = []
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "End", "Home"):
            page.keyboard.press(key)
            said.append(readout.inner_text())
        assert len(set(said)) >= 4 and said[-1].startswith(("FedAvg, p = 0.1", "PerInvFL, p = 0.1"))
        page.keyboard.press("Enter")
        assert page.locator("#spectrum g.dim").count() == 1
        page.keyboard.press("Escape")
        assert page.locator("#spectrum g.dim").count() == 0
        reach(page, "#csv-table")
        with page.expect_download():
            page.keyboard.press("Enter")
        reach(page, "#learning")
        page.keyboard.press("ArrowRight")
        assert "round" in page.locator("#learning-readout").inner_text()
        reach(page, "summary")
        page.keyboard.press("Enter")
        assert page.locator("details[open]").count() == 1
        missing = page.evaluate(
            "[...document.querySelectorAll('select, input')].filter((e) => !e.labels.length).map((e) => e.id)"
        )
        assert not missing, "every control needs a label"


def reach(page: Page, selector: str) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"{selector} cannot be reached by Tab")


@pytest.mark.parametrize("which", ["report", "diagnosed", "published"])
def test_on_a_phone_nothing_sticks_out(which: str, browser: Browser, request: pytest.FixtureRequest) -> None:
    file = request.getfixturevalue(which)
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with opened(browser, file, **phone) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        small = page.evaluate(
            "[...document.querySelectorAll('button, select')].filter((e) => e.offsetParent && !e.closest('thead') && "
            "e.getBoundingClientRect().height < 30).map((e) => e.textContent)"
        )
        assert not small, "too small for a finger"
        page.locator("#spectrum svg").tap(position={"x": 60, "y": 150})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_can_be_read(
    scheme: str, browser: Browser, diagnosed: Path, published: Path
) -> None:
    for file in (diagnosed, published):
        with opened(browser, file, color_scheme=scheme) as page:
            paper = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert (max(map(int, paper)) < 60) == (scheme == "dark")
            page.evaluate("document.querySelectorAll('details').forEach((e) => e.open = true)")
            assert page.evaluate(CONTRAST) == []
            page.locator("#theme").click()
            turned = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert (max(map(int, turned)) < 60) == (scheme == "light")
            assert page.evaluate(CONTRAST) == []


def test_the_diagnosis_is_in_it(browser: Browser, diagnosed: Path) -> None:
    with opened(browser, diagnosed) as page:
        assert page.get_by_text("Shortcut column: badge, at 5 of 5 clients.").is_visible()
        assert page.locator("#client option").all_inner_texts() == ["all 5 (mean)", *SITES]
        page.locator("summary", has_text="Bern").click()
        bern = page.locator("details[open]")
        assert "It relies on badge" in bern.inner_text() and "night" in bern.inner_text()


def test_published_tables_by_rule_beside_the_paper(browser: Browser, published: Path) -> None:
    with opened(browser, published) as page:
        compared = cells(page, "compared")
        assert float(compared["PerInvFL"][1]) == pytest.approx(fmean(TABLES["rc_mnist"]["perinvfl"]), abs=0.006)
        assert page.locator('#spectrum g[data-kind="paper"]').count() == len(TABLES["rc_mnist"])
        page.locator("#paper").uncheck()
        assert page.locator('#spectrum g[data-kind="paper"]').count() == 0
        words = page.locator("#rule-words").inner_text()
        before = cells(page, "numbers")
        page.locator("#rule").select_option(label="oracle")
        assert page.locator("#rule-words").inner_text() != words and cells(page, "numbers") != before
        mnist = page.locator("#numbers").inner_text()
        page.get_by_role("button", name="RC-FMNIST").click()
        assert page.locator("#numbers").inner_text() != mnist


def test_regression_and_a_dangerous_label(browser: Browser, tmp_path: Path) -> None:
    odd = '\n[[algorithm]]\nname = "fedavg"\nlabel = "</script><img src=x onerror=alert(1)>"\nlearning_rate = 0.01\n'
    settings = ["--set", "data.task=regression", "--set", "algorithm.penalty_weight=0.1"]
    assert call(["run", str(tiny_file(tmp_path, more=odd)), "--out", str(tmp_path), *settings]) == 0
    assert call(["report", str(tmp_path / "tiny"), "--diagnose", "-o", str(tmp_path / "r.html")]) == 0
    with opened(browser, tmp_path / "r.html") as page:
        assert page.locator("#h-spectrum").inner_text() == "Mean squared error under shift"
        assert "</script><img src=x onerror=alert(1)>" in cells(page, "numbers")
        assert page.locator("img").count() == 0
        shown = {name: float(row[0]) for name, row in cells(page, "numbers").items() if name != "Constant answer"}
        assert (
            f"{min(shown, key=lambda name: shown[name])} is best on average" in page.locator("#sentence").inner_text()
        )


def test_a_client_without_samples_of_a_test_context_is_left_out_of_means(
    browser: Browser, runs: Path, tmp_path: Path
) -> None:
    for path in runs.glob("*/events.jsonl"):
        events = read_events(path)
        for event in events:
            kept = [event.get(kind, {}) for kind in ("personal", "global")] + [
                event.get("notes", {}).get("constant", {})
            ]
            for scores in kept:
                if "0.3" in scores:
                    scores["0.3"][1] = None
        Writer(tmp_path / path.parent.name).replace(events)
    assert call(["report", str(tmp_path), "-o", str(tmp_path / "r.html")]) == 0
    found = [run.evaluations[-1] for run in find_runs(runs)]
    left = [100 * fmean(event["personal"]["0.3"][::2]) for event in found if "personal" in event]
    with opened(browser, tmp_path / "r.html") as page:
        assert float(cells(page, "numbers")["PerInvFL"][3]) == pytest.approx(fmean(left), abs=0.006)
        page.locator("#client").select_option(label="Client 2")
        assert cells(page, "numbers")["PerInvFL"][3] == ""
        drawn = page.locator("main").inner_html()
        assert "NaN" not in drawn and "null" not in drawn


def test_mistakes_are_one_sentence(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    searched = tmp_path / "s"
    assert call(["sweep", str(tiny_file(tmp_path, rounds=2)), "--trials", "2", "--out", str(searched)]) == 0
    for sentence, arguments in {
        "is not a folder": [tmp_path / "nowhere"],
        "There is no finished run here": [tmp_path / "empty"],
        "holds the trials of a search": [searched],
    }.items():
        (tmp_path / "empty").mkdir(exist_ok=True)
        capsys.readouterr()
        assert call(["report", *map(str, arguments), "-o", str(tmp_path / "x.html")]) == 2
        printed = capsys.readouterr().err
        assert sentence in printed and printed.count("\n") == 1 and not (tmp_path / "x.html").exists()


def test_the_page_holds_plain_json(report: Path) -> None:
    text = report.read_text()
    found = json.loads(re.search(r'<script type="application/json" id="found">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert [section["benchmark"] for section in found["sections"]] == ["random"]
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text


def test_a_name_cannot_turn_the_text_beside_it(tmp_path: Path) -> None:
    odd = '\n[[algorithm]]\nname = "fedavg"\nlabel = "a\\u202eb \\u001b[31m"\nlearning_rate = 0.01\n'
    assert call(["run", str(tiny_file(tmp_path, more=odd)), "--out", str(tmp_path)]) == 0
    assert call(["report", str(tmp_path / "tiny"), "-o", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text()
    assert not {"\u202e", "\x1b"} & set(text) and r"a\\u202eb \\x1b[31m" in text, "as escapes, in JSON"


def test_rare_classes_are_told_by_balanced_accuracy(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "birds.toml"
    file.write_text(
        'name = "birds"\ndata = {benchmark = "drawn_birds", train_per_client = 12, test_per_client = 8, left_over = 0, '
        'size = 16, birds = 40}\nmodel = {hidden = [8]}\ntraining = {rounds = 2}\n[[algorithm]]\nname = "fedavg"\n'
    )
    assert call(["run", str(file), "--quiet", "--out", str(tmp_path)]) == 0
    (run,) = find_runs(tmp_path / "birds")
    assert call(["report", str(run.folder), "-o", str(tmp_path / "r.html")]) == 0
    want = 100 * fmean(run.evaluations[-1]["balanced"][case] for case in run.start["spectrum"])
    with opened(browser, tmp_path / "r.html") as page:
        assert page.locator("#numbers thead th").all_inner_texts()[3] == "Plain accuracy"
        rows = cells(page, "numbers")
        assert float(rows["FedAvg"][0]) == pytest.approx(want, abs=0.006)
        assert rows["Constant answer"][0] == "50.00"
        for name, scores in (
            ("FedAvg", run.evaluations[-1]["global"]),
            ("Constant answer", run.start["notes"]["constant"]),
        ):
            plain = 100 * fmean(fmean(scores[case]) for case in run.start["spectrum"])
            assert float(rows[name][2]) == pytest.approx(plain, abs=0.006)
        assert page.locator("#h-spectrum").inner_text() == "Class-balanced accuracy under shift"
        assert page.locator("#h-diagnosis").is_visible()
