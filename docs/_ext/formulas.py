"""Formulas as MathML, which browsers draw by themselves: no script and no network."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

LOG = logging.getLogger(__name__)
# A letter with an accent and an index: the index stands beside it, where docutils would put it below.
ACCENTED = re.compile(r"(\\(?:bar|hat|tilde)\s*(?:\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z]))_")


def mathml(source: str, node: nodes.Element, as_block: bool) -> str:
    """A formula that cannot be read is a warning that names its page, and so stops the build."""
    try:
        return latex2mathml.tex2mathml(ACCENTED.sub(r"\1{}_", source), as_block=as_block)
    except MathError as error:
        LOG.warning("%s in the formula %s", error, source, location=node)
        return source


def inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), node, as_block=False))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.math_block) -> None:
    source = node.astext()
    if "\\\\" in source and "\\begin" not in source:
        source = rf"\begin{{aligned}}{source}\end{{aligned}}"
    translator.body.append(f'<div class="math">{mathml(source, node, as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
