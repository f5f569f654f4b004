"""The page: numbers, style and script in one file."""

import json
import time
from importlib.resources import files
from typing import Any

import jinja2

import perinvfl


def render_page(found: dict[str, Any]) -> str:
    """HTML that stands alone. Numbers lie in it as JSON in which nothing can end the script they stand in."""
    here = files("perinvfl.report")
    source = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = source.from_string(here.joinpath("page.html.j2").read_text(encoding="utf-8"))
    titles = " and ".join(dict.fromkeys(section["title"] for section in found["sections"]))
    return template.render(
        title=titles,
        version=perinvfl.__version__,
        made=time.strftime("%Y-%m-%d"),
        sections=found["sections"],
        diagnoses=found["diagnoses"],
        style=here.joinpath("page.css").read_text(encoding="utf-8"),
        script=here.joinpath("page.js").read_text(encoding="utf-8"),
        numbers=as_script({"sections": found["sections"]}),
    )


def as_script(value: Any) -> str:
    """
    >>> as_script({"label": "</script>"})
    '{"label":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
