"""One offline page about runs: `data` gathers the numbers from records, `page` puts them into the template.

The page is a template, a style sheet and a script beside this file; nothing is fetched when it is opened.
"""

from perinvfl.report.data import gather
from perinvfl.report.page import render_page

__all__ = ["gather", "render_page"]
