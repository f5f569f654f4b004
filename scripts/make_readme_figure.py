"""The picture in README.md: the README's own example, tested with a shortcut that holds less and less.

    python scripts/make_readme_figure.py     # about a minute; writes docs/figures/shortcut.svg

Needs the extra `plot`. The numbers are printed as well.
"""

import sys
from pathlib import Path

import altair as alt

import perinvfl as pf

AGREES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
METHODS = {"fedavg": "plain training (FedAvg)", "recommended": "perinvfl, default settings"}
COLOURS = ("#c04a2b", "#1f6f8b")


def main() -> None:
    federation = pf.load("planted", p_test=list(AGREES))
    rows: list[dict[str, float | str]] = []
    for name, label in METHODS.items():
        scores = pf.start(federation, name, rounds=100).run().evaluate()
        for agrees in AGREES:
            each = [score for score in scores[f"{agrees:g}"].values() if score is not None]
            rows.append({"agrees": 100 * agrees, "accuracy": 100 * sum(each) / len(each), "method": label})
            print(f"{label}: the shortcut agrees in {agrees:.0%}, accuracy {rows[-1]['accuracy']:.1f} %")
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/shortcut.svg")
    picture(rows).save(path)


def picture(rows: list[dict[str, float | str]]) -> alt.LayerChart:
    colour = alt.Color("method:N", scale=alt.Scale(domain=list(METHODS.values()), range=list(COLOURS)), legend=None)
    across = alt.X(
        "agrees:Q",
        scale=alt.Scale(domain=[92, 8], nice=False),
        axis=alt.Axis(values=[90, 70, 50, 30, 10], labelExpr="datum.value + ' %'", grid=False),
        title=["how often the shortcut agrees with the label", "at test time (in training: 85 to 95 %)"],
    )
    up = alt.Y("accuracy:Q", scale=alt.Scale(domain=[20, 100]), title="accuracy (%)")
    data = alt.Data(values=rows)
    lines = alt.Chart(data).mark_line(point={"size": 50}, strokeWidth=3).encode(across, up, colour)
    places = zip(METHODS.values(), ((90, 62), (54, 88)), strict=True)  # where a line is named
    named = alt.Data(values=[{"method": name, "agrees": x, "accuracy": y} for name, (x, y) in places])
    names = alt.Chart(named).mark_text(align="left", fontSize=15, fontWeight=600)
    chance = alt.Chart(alt.Data(values=[{"accuracy": 50}])).mark_rule(strokeDash=[4, 4], color="#777777").encode(up)
    note = alt.Chart(alt.Data(values=[{"agrees": 90, "accuracy": 50, "text": "chance"}]))
    named_chance = note.mark_text(align="left", dy=-8, color="#555555", fontSize=14).encode(across, up, text="text:N")
    chart = chance + named_chance + lines + names.encode(across, up, colour, text="method:N")
    return (
        chart.properties(width=400, height=250, background="white", padding=8)
        .configure_view(stroke=None)
        .configure_axis(labelFontSize=15, titleFontSize=15, titleFontWeight="normal", gridColor="#e6e6e6")
    )


if __name__ == "__main__":
    main()
