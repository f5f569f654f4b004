"""The page: numbers, style and script in one file."""

import json
import re
import time
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup, escape

import perinvfl
from perinvfl.core.naming import all_visible, visible


def render_page(found: dict[str, Any]) -> str:
    """HTML that stands alone. Numbers lie in it as JSON in which nothing can end the script they stand in."""
    here, source = files("perinvfl.report"), page_environment()
    parts = [here.joinpath(name).read_text(encoding="utf-8") for name in ("summary.html.j2", "page.html.j2")]
    template = source.from_string("".join(parts).lstrip())
    titles = " and ".join(dict.fromkeys(section["title"] for section in found["sections"]))
    return template.render(
        title=titles,
        version=perinvfl.__version__,
        made=time.strftime("%Y-%m-%d"),
        sections=found["sections"],
        diagnoses=found["diagnoses"],
        style=here.joinpath("page.css").read_text(encoding="utf-8"),
        script=here.joinpath("page.js").read_text(encoding="utf-8"),
        numbers=as_script(all_visible({"sections": found["sections"]})),
    )


def page_environment() -> jinja2.Environment:
    """How templates are read: all that is put in is escaped, and what is not there is an error.

    Escaped for HTML, and so that a name cannot turn the direction of what stands beside it.
    """
    source = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    source.filters["code"] = as_code
    return source


def _shown(value: Any) -> Any:
    return Markup(visible(value)) if isinstance(value, Markup) else visible(value) if type(value) is str else value


def as_code(text: str) -> Markup:
    """
    >>> as_code("try `perinvfl audit` & see")
    Markup('try <code>perinvfl audit</code> &amp; see')
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def as_script(value: Any) -> str:
    """
    >>> as_script({"label": "</script>"})
    '{"label":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
