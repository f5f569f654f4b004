"""What charts have in common: axes, colours, legends, lines to compare with, and words about what is shown."""

import math
from typing import Any

from perinvfl.core.extras import how_to_install
from perinvfl.errors import UserError
from perinvfl.plots.figure_data import CONSTANT, SHAPE_ONLY, SHORTCUTS, FigureData, Values, is_number

try:
    import altair as alt
except ModuleNotFoundError as missing:
    if missing.name != "altair":
        raise
    raise UserError(f"Figures need two more packages: {how_to_install('plot')}.") from None

CONFIG: dict[str, Any] = {
    "background": "white",
    "font": "Arial, Helvetica, sans-serif",
    "view": {"stroke": "#CCCCCC"},
    "title": {"fontSize": 16, "subtitleFontSize": 12, "subtitleColor": "#444444", "anchor": "start", "offset": 10},
    "axis": {"labelFontSize": 13, "titleFontSize": 13, "titleFontWeight": "normal", "gridColor": "#EAEAEA"},
    "legend": {"labelFontSize": 13, "labelLimit": 300, "symbolSize": 90, "symbolStrokeWidth": 2},
    "header": {"labelFontSize": 12, "labelLimit": 160, "labelFontWeight": "bold"},
}


def finish(chart: Any, title: str, subtitle: str | list[str]) -> alt.TopLevelMixin:
    return chart.properties(title=alt.TitleParams(title, subtitle=subtitle)).configure(**CONFIG)


def accuracy_axis(values: Values, field: str = "accuracy") -> alt.Y:
    """Between multiples of ten, with room at the edges; the same for every layer, or Vega would add zero."""
    ends = [
        value[name]
        for value in values
        for name in ("accuracy", "low", "high", "constant", "shape_only")
        if name in value
    ]
    low, high = 10 * math.floor((min(ends) - 1) / 10), 10 * math.ceil((max(ends) + 1) / 10)
    return alt.Y(f"{field}:Q", title="Accuracy (%)", scale=alt.Scale(domain=[max(0, low), min(100, high)], nice=False))


def case_axis(figure: FigureData) -> alt.X:
    cases = figure.cases
    title = sentence(across(figure))
    if all(map(is_number, cases)):
        scale = alt.Scale(zero=False, nice=False, padding=8)
        axis = alt.Axis(values=[float(case) for case in cases], labelExpr="datum.value", grid=False)
        return alt.X("p:Q", title=title, scale=scale, axis=axis)
    return alt.X("case:N", sort=cases, title=title, axis=alt.Axis(labelAngle=0))


def across(figure: FigureData) -> str:
    """What the horizontal axis of test cases shows."""
    shortcut = SHORTCUTS.get(figure.table.benchmark)
    return f"how often the {shortcut} agrees with the label at test (p)" if shortcut else "test case"


def method_colour(figure: FigureData, legend: bool = True) -> alt.Color:
    shown = method_legend(figure) if legend else None
    colours = [colour for colour, _ in figure.styles.values()]
    return alt.Color("method:N", scale=alt.Scale(domain=list(figure.styles), range=colours), legend=shown)


def method_shape(figure: FigureData) -> alt.Shape:
    shapes = [shape for _, shape in figure.styles.values()]
    return alt.Shape(
        "method:N", scale=alt.Scale(domain=list(figure.styles), range=shapes), legend=method_legend(figure)
    )


def method_legend(figure: FigureData) -> alt.Legend:
    columns = 3 if max(map(len, figure.styles)) < 18 else 2
    return alt.Legend(title=None, orient="bottom", columns=columns, symbolOpacity=1)


def dashes(field: str, kinds: list[str], shown: bool) -> alt.StrokeDash:
    legend = alt.Legend(title=None, orient="bottom", symbolStrokeColor="#333333", symbolSize=500, columns=2)
    scale = alt.Scale(domain=kinds, range=[[1, 0], [5, 3]][: len(kinds)])
    return alt.StrokeDash(f"{field}:N", scale=scale, legend=legend if shown else None)


def tooltip(*place: str) -> list[alt.Tooltip]:
    title = {"case:N": "Test case", "round:Q": "Round", "client:N": "Client"}
    return [
        alt.Tooltip("method:N", title="Method"),
        *(alt.Tooltip(name, title=title[name]) for name in place),
        alt.Tooltip("accuracy:Q", title="Accuracy (%)", format=".2f"),
    ]


def legend_selection() -> alt.Parameter:
    return alt.selection_point(fields=["method"], bind="legend", name="picked")


def dimmed(picked: alt.Parameter) -> Any:
    return alt.when(picked).then(alt.value(1.0)).otherwise(alt.value(0.08))


def level_rules(figure: FigureData, values: Values) -> list[alt.Chart]:
    """In every panel: a constant answer, and the shape without the shortcut."""
    dotted = alt.Chart().mark_rule(strokeDash=[1, 3], color=CONSTANT[0], strokeWidth=2)
    plain = alt.Chart().mark_rule(color=SHAPE_ONLY[0], strokeWidth=2)
    marks = {"constant": dotted, "shape_only": plain}
    return [marks[name].encode(y=accuracy_axis(values, f"mean({name})")) for name in figure.levels]


def band(figure: FigureData, base: alt.Chart, values: Values, picked: alt.Parameter | None = None) -> list[alt.Chart]:
    """A shade of one standard deviation, where there are several seeds."""
    if figure.seeds == 1:
        return []
    opacity = alt.value(0.18) if picked is None else alt.when(picked).then(alt.value(0.18)).otherwise(alt.value(0.02))
    shade = base.transform_filter("datum.high > datum.low").mark_area()
    return [shade.encode(y=accuracy_axis(values, "low"), y2="high:Q", opacity=opacity)]


def training_range(figure: FigureData) -> list[alt.Chart]:
    """A shade over the p of the training contexts, where the benchmark has such a thing."""
    asked = next(iter(figure.runs.values()))[0].start["asked"]["data"].get("p_train")
    if not asked or not all(map(is_number, figure.cases)):
        return []
    trained = [p for client in asked for p in (client if isinstance(client, list) else [client])]
    shade = alt.Chart(alt.Data(values=[{"low": min(trained), "high": max(trained), "words": "training"}]))
    x = alt.X("low:Q")
    return [
        shade.mark_rect(color="#EFEFEF").encode(x=x, x2="high:Q"),
        shade.mark_text(align="left", baseline="bottom", dx=3, dy=-4, color="#595959", fontSize=12).encode(
            x=x, y=alt.value("height"), text="words:N"
        ),
    ]


def explained(figure: FigureData) -> str:
    """What the lines of `level_rules` are."""
    return "Dotted: a constant answer" + ("; grey: shape only" if "shape_only" in figure.levels else "")


def averaged(figure: FigureData) -> str:
    band = f"; shade: ± one standard deviation over {figure.seeds} seeds" if figure.seeds > 1 else ""
    return f"mean over {figure.clients} clients{band}"


def sentence(words: str) -> str:
    return words[0].upper() + words[1:]
