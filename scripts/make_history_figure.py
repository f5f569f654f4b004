"""The picture of the history in benchmarks/RESULTS.md: every figure over its target, state by state.

    python scripts/make_history_figure.py     # writes docs/figures/history.svg

Needs the extra `plot`.
"""

import re
from pathlib import Path

import altair as alt
import vl_convert

ROOT = Path(__file__).parents[1]
TABLE, PICTURE = ROOT / "benchmarks/RESULTS.md", ROOT / "docs/figures/history.svg"
AT_MOST = "at most "
COLOURS = ("#9bb8c4", "#1f6f8b", "#c04a2b", "#6b8f3a", "#7a5195", "#d9a441", "#222222")  # the oldest first


def history(text: str) -> tuple[list[dict[str, float | str]], list[str]]:
    """One row for each figure and state, with how far it is on the way to its target: 1 is reached; and the states."""
    section = text.split("\n## History\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    titles, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    found: list[dict[str, float | str]] = []
    for what, target, *measured in rows:
        most, goal = target.startswith(AT_MOST), float(target.removeprefix(AT_MOST))
        for state, value in zip(titles[2:], measured, strict=True):
            if value:
                reached = goal / float(value) if most else float(value) / goal
                found.append({"what": what.replace("`", ""), "state": state, "reached": round(reached, 3)})
    return found, titles[2:]


def picture(rows: list[dict[str, float | str]], states: list[str]) -> str:
    """SVG."""
    order = list(dict.fromkeys(str(row["what"]) for row in rows))
    down = alt.Y("what:N", sort=order, title=None, axis=alt.Axis(labelLimit=460, grid=True))
    across = alt.X("reached:Q", scale=alt.Scale(domainMin=0.6, zero=False), title="measured over target (1: reached)")
    colour = alt.Color(
        "state:N",
        scale=alt.Scale(domain=states, range=list(COLOURS[: len(states)])),
        legend=alt.Legend(title=None, orient="top"),
    )
    data = alt.Data(values=rows)
    ways = alt.Chart(data).mark_line(color="#bbbbbb").encode(across, down, detail="what:N")
    points = alt.Chart(data).mark_point(filled=True, size=90, opacity=1).encode(across, down, colour)
    target = alt.Chart(alt.Data(values=[{"reached": 1}])).mark_rule(strokeDash=[4, 4], color="#555555").encode(across)
    chart = (
        (target + ways + points)
        .properties(width=420, height=26 * len(order), background="white", padding=12)
        .configure_view(stroke=None)
        .configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal", gridColor="#e6e6e6")
    )
    return re.sub(r"\s+$", "", vl_convert.vegalite_to_svg(chart.to_dict(), allowed_base_urls=[])) + "\n"


def main() -> None:
    PICTURE.write_text(picture(*history(TABLE.read_text())))


if __name__ == "__main__":
    main()
