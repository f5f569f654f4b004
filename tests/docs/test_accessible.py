"""Axe, a checker of accessibility, finds nothing on pages of the documentation: light and dark, desktop and phone."""

import subprocess
import sys
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.commands import ROOT, environment

SEEN = ("index.md", "decide.md", "faq.md", "figures/shortcut.html", "_static/page.css", "conf.py", "_ext/accessible.py")


@pytest.fixture(scope="module")
def site() -> Path:
    """The pages that `make docs` has made; where they are missing or older than their sources, they are made."""
    built = ROOT / "build/docs/index.html"
    newest = max((ROOT / "docs" / name).stat().st_mtime for name in SEEN)
    if not built.exists() or built.stat().st_mtime < newest:
        command = [sys.executable, "-m", "sphinx", "--fresh-env", "--fail-on-warning", "--quiet", "docs", "build/docs"]
        subprocess.run(command, cwd=ROOT, env=environment(), check=True)
    return built.parent


SHOWN = [("index", scheme, width) for scheme in ("light", "dark") for width in (1280, 390)]
SHOWN += [("decide", "light", 390), ("faq", "dark", 1280), ("beyond", "light", 390), ("algorithms/apfl", "light", 390)]


@pytest.mark.parametrize(("name", "scheme", "width"), SHOWN)
def test_axe_finds_no_error(browser: Browser, site: Path, name: str, scheme: str, width: int) -> None:
    settings = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    context = browser.new_context(**settings)  # type: ignore[arg-type]
    page = context.new_page()
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.goto((site / f"{name}.html").as_uri())
    found = Axe().run(page).response["violations"]
    wide = page.evaluate("document.documentElement.scrollWidth")
    context.close()
    assert not [(fault["id"], fault["nodes"][0]["html"]) for fault in found]
    assert wide <= width, "the page is wider than the screen"
    assert all(url.startswith(("file:", "data:")) for url in fetched), "the page fetched something"


def test_axe_notices_an_error(browser: Browser) -> None:
    page = browser.new_page()
    page.set_content('<html lang="en"><title>t</title><main><h1>h</h1><img src="data:,"></main></html>')
    assert "image-alt" in {fault["id"] for fault in Axe().run(page).response["violations"]}
    page.close()
