"""Write docs/figures/report-hospitals.png: the first part of a report, up to what is folded, as a browser shows it.

python scripts/make_report_figure.py hospitals.html
"""

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FIGURE = Path(__file__).parents[1] / "docs/figures/report-hospitals.png"
WIDTH, SCALE, MARGIN = 860, 1.25, 20


def main(report: Path) -> None:
    chromium = next(path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=SCALE)
        page.goto(report.resolve().as_uri())
        folded = page.locator("details").first.bounding_box()
        assert folded, "The report has no folded part."
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": folded["y"] + folded["height"] + MARGIN}
        page.screenshot(path=FIGURE, full_page=True, clip=clip)  # type: ignore[arg-type]
        browser.close()
    Image.open(FIGURE).convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE).save(
        FIGURE, optimize=True
    )  # a third of the size


if __name__ == "__main__":
    main(Path(sys.argv[1]))
