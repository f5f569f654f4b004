"""`perinvfl audit` as typed: the answer in the terminal, the numbers, and the page in a real browser."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from perinvfl.cli import call
from tests.audit.made_tables import planted_csv
from tests.browser import CONTRAST, opened

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def audited(made_sites: Path) -> Path:
    """The made-up hospitals, their last year held out."""
    folder = made_sites.parent
    asked = ["--label", "ill", "--client", "hospital", "--context", "year", "--held-out", "2023"]
    assert call(["audit", str(made_sites), *asked, "--out", str(folder / "out")]) == 0
    return folder / "out"


def test_the_scanner_is_to_be_dropped(audited: Path, browser: Browser) -> None:
    numbers = json.loads((audited / "audit.json").read_text())
    found = {column["name"]: column for column in numbers["columns"]}
    assert {name: column["verdict"]["advice"] for name, column in found.items()} == {
        "scanner": "drop", "age": "keep", "marker": "keep", "pressure": "keep", "noise": "keep",
    }  # fmt: skip
    assert found["scanner"]["changes"]["held out"]["low"] > 0.15
    with opened(browser, audited / "audit.html") as page:
        assert page.locator("p.verdict").inner_text() == "Drop scanner. Keep the other 4 columns."
        row = page.locator("tbody tr", has=page.locator("th", has_text="scanner")).first
        assert row.locator(".advice").inner_text() == "drop"
        mean = 100 * found["scanner"]["changes"]["held out"]["mean"]
        assert f"+{mean:.1f}" in row.locator("td").last.inner_text()
        assert page.locator("article", has_text="scanner").locator("svg").count() == 2  # by context, by site
        assert page.locator("circle.held").count() > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_can_be_read_on_a_phone(scheme: str, audited: Path, browser: Browser) -> None:
    phone = {"viewport": {"width": 400, "height": 800}, "is_mobile": True, "has_touch": True, "color_scheme": scheme}
    with opened(browser, audited / "audit.html", **phone) as page:
        page.evaluate("document.querySelectorAll('details').forEach((e) => e.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert page.evaluate(CONTRAST) == []
        wide = (
            "[...document.querySelectorAll('table')].filter((t) => t.scrollWidth > 380 && !t.closest('.scroll')).length"
        )
        assert page.evaluate(wide) == 0, "a wide table must scroll"


def test_a_dangerous_column_and_json(tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]) -> None:
    path = planted_csv(tmp_path / "t.csv", rows=100)
    path.write_text(path.read_text().replace("x7", "[b]<img src=x onerror=alert(1)>", 1))
    asked = ["audit", str(path), "--label", "ill", "--client", "site", "--context", "year", "--out", str(tmp_path)]
    assert call(asked) == 0
    assert "[b]<img" in capsys.readouterr().out
    assert call([*asked, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 400
    with opened(browser, tmp_path / "audit.html") as page:
        assert page.locator("img").count() == 0


def test_the_same_table_gives_the_same_page(audited: Path, tmp_path: Path) -> None:
    asked = ["--label", "ill", "--client", "hospital", "--context", "year", "--held-out", "2023"]
    assert call(["audit", str(audited.parent / "sites.csv"), *asked, "--out", str(tmp_path)]) == 0
    first, second = (json.loads((place / "audit.json").read_text()) for place in (audited, tmp_path))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_a_mistake_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = planted_csv(tmp_path / "t.csv", rows=40)
    assert call(["audit", str(path), "--label", "il", "--client", "site"]) == 2
    told = capsys.readouterr().err.strip()
    assert 'there is no column "il"' in told and "\n" not in told
