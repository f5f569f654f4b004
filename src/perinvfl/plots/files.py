"""Figures as files that need no network: SVG, PNG and an interactive page."""

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perinvfl.core.extras import how_to_install
from perinvfl.core.files import write_atomically, writing
from perinvfl.core.naming import all_visible
from perinvfl.errors import UserError

if TYPE_CHECKING:
    import altair as alt

try:
    import vl_convert
except ModuleNotFoundError as missing:
    if missing.name != "vl_convert":
        raise
    raise UserError(f"Figures need two more packages: {how_to_install('plot')}.") from None


def write_chart(chart: "alt.TopLevelMixin", stem: Path) -> list[Path]:
    """Three files beside each other: SVG, PNG, and a page that stands alone."""
    # The library that draws ends the process where a name holds a character that no SVG file may.
    spec = all_visible(chart.to_dict())
    # Legends below each other; Vega knows this setting, Altair's schema does not.
    spec["config"]["legend"]["layout"] = {"bottom": {"direction": "vertical", "anchor": "start"}}
    contents = {
        ".svg": vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]).encode(),
        ".png": vl_convert.vegalite_to_png(spec, scale=2, allowed_base_urls=[]),
        ".html": _page(spec).encode(),
    }
    with writing(stem):
        stem.parent.mkdir(parents=True, exist_ok=True)
    for ending, content in contents.items():
        write_atomically(stem.with_name(stem.name + ending), content)
    return [stem.with_name(stem.name + ending) for ending in contents]


def _page(spec: dict[str, Any]) -> str:
    """The chart with Vega inside. No link to an online editor, and no label can end the script it stands in."""
    actions = {"export": True, "source": False, "compiled": False, "editor": False}
    script = json.dumps({**spec, "usermeta": {"embedOptions": {"actions": actions}}}, ensure_ascii=False)
    empty = {"$schema": spec["$schema"], "data": {"values": []}, "mark": "point"}
    head, marker, rest = vl_convert.vegalite_to_html(empty, bundle=True).rpartition("const spec = ")
    title = escape(spec["title"]["text"])
    head = head.replace("<html>", '<html lang="en">', 1).replace("<title>Chart</title>", f"<title>{title}</title>", 1)
    return head + marker + script.replace("<", "\\u003c") + rest[rest.index(";\n") :]
