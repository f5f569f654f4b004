"""A real Chromium for tests: Debian's, driven by Playwright, with everything that must not happen written down."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright


@contextmanager
def chromium() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for path in map(shutil.which, names) if path), None)
    assert found, "Chromium is not installed; `make browser` installs it."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, file: Path, **settings: Any) -> Iterator[Page]:
    """A page of a file; afterwards nothing may have been fetched and nothing may have gone wrong."""
    context = browser.new_context(accept_downloads=True, **{"viewport": {"width": 1100, "height": 900}, **settings})
    page = context.new_page()
    requests: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(file.as_uri())
    yield page
    context.close()
    fetched = [url for url in requests if url != file.as_uri() and not url.startswith(("data:", "blob:"))]
    assert not fetched, "the page fetched something"
    assert not problems


CONTRAST = """
() => {
  const luminance = (c) => { const l = c.map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2]; };
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (node) => { for (let n = node; n; n = n.parentElement) {
    const c = parse(getComputedStyle(n).backgroundColor); if (c.length === 3 || c[3] > 0.99) return c.slice(0, 3); } return [255, 255, 255]; };
  const low = [];
  for (const node of document.querySelectorAll("p, td, th, button, label, h1, h2, h3, li, dd, dt, summary, .quiet, .flag, legend")) {
    if (!node.textContent.trim() || !node.offsetParent) continue;
    const a = luminance(parse(getComputedStyle(node).color).slice(0, 3)), b = luminance(behind(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${node.tagName} ${node.className} ${node.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return low;
}
"""  # noqa: E501
