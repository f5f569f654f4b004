"""What the theme leaves out for people who use a keyboard or a screen reader, added to every page when it is written.

tests/docs/test_accessible.py looks at the result with axe.
"""

from pathlib import Path

from sphinx.application import Sphinx

ADDED = {
    'role="heading">': 'role="heading" aria-level="2">',  # captions of the sidebar
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="On this page">',
    '<div class="highlight"><pre>': '<div class="highlight"><pre tabindex="0">',  # long lines scroll
    '<th class="head"><p></p></th>': '<td class="head"></td>',  # a corner is no heading
    '<div class="table-wrapper docutils container">': '<div class="table-wrapper docutils container" tabindex="0">',
    'colwidths-auto docutils container">': 'colwidths-auto docutils container" tabindex="0">',
    ' display="block">': ' display="block" tabindex="0">',  # wide formulas scroll
}


def complete(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        old = new = path.read_text(encoding="utf-8")
        for without, with_it in ADDED.items():
            new = new.replace(without, with_it)
        if new != old:
            path.write_text(new, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", complete)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
