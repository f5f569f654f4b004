"""How figures are drawn: one function a kind, from a scene to an Altair chart."""

import json
import math
import textwrap
from collections.abc import Sequence
from typing import Any

from perinvfl.errors import UserError
from perinvfl.plots.figure_data import (
    AVERAGE,
    CONSTANT,
    MOST_CLIENTS,
    SETTINGS,
    SHAPE_ONLY,
    SHORTCUTS,
    WORST,
    FigureData,
    Values,
    client_values,
    is_number,
    is_search,
    learning_values,
    look_at,
    sensitivity_values,
    spectrum_values,
)
from perinvfl.results.search_records import SearchRecords
from perinvfl.runs.records import Run

try:
    import altair as alt
except ModuleNotFoundError as missing:
    if missing.name != "altair":
        raise
    raise UserError("Figures need two more packages: pip install 'perinvfl[plot]'.") from None

CONFIG: dict[str, Any] = {
    "background": "white",
    "font": "Arial, Helvetica, sans-serif",
    "view": {"stroke": "#CCCCCC"},
    "title": {"fontSize": 16, "subtitleFontSize": 12, "subtitleColor": "#444444", "anchor": "start", "offset": 10},
    "axis": {"labelFontSize": 13, "titleFontSize": 13, "titleFontWeight": "normal", "gridColor": "#EAEAEA"},
    "legend": {"labelFontSize": 13, "labelLimit": 300, "symbolSize": 90, "symbolStrokeWidth": 2},
    "header": {"labelFontSize": 12, "labelLimit": 160, "labelFontWeight": "bold"},
}
PANEL = 23  # letters that fit over a panel


def spectrum_chart(scene: FigureData) -> alt.TopLevelMixin:
    """Accuracy against p_test; the paper's numbers dashed."""
    values = spectrum_values(scene)
    shift = "as the shortcut stops holding" if scene.table.benchmark in SHORTCUTS else "by test case"
    title = f"{scene.title}: {scene.measure} {shift}"
    told = f"{_sentence(scene.when)}, {_averaged(scene)}"
    compared = any(value["source"] == "the paper" for value in values)
    x = _case_axis(scene)
    if scene.crowded:
        shown = [value for value in values if value["source"] != "reference"]
        kinds = ["measured", "the paper"] if compared else ["measured"]
        grid = _grid(scene, shown, x, "source", kinds, "case:N")
        return _finish(grid, title, [told, f"Across: {_across(scene)}", _explained(scene)])
    picked = _legend_selection()
    source = _dashes("source", ["measured", "the paper"], shown=compared)
    base = alt.Chart(alt.Data(values=values)).encode(
        x=x, y=_accuracy_axis(values), color=_method_colour(scene), opacity=_dimmed(picked), tooltip=_tooltip("case:N")
    )
    lines = base.transform_filter("datum.source != 'reference'").mark_line().encode(strokeDash=source)
    points = base.transform_filter("datum.source == 'measured'").mark_point(filled=True, size=45, opacity=1)
    level = base.transform_filter("datum.source == 'reference'").mark_line(strokeDash=[1, 3], strokeWidth=2)
    layers = [*_training_range(scene), *_band(scene, base, values, picked), level, lines]
    layers.append(points.encode(shape=_method_shape(scene)).add_params(picked))
    return _finish(alt.layer(*layers).properties(width=400, height=300), title, told)


def learning_chart(scene: FigureData) -> alt.TopLevelMixin:
    """Accuracy against the round, over the shifted cases and as in training."""
    values = learning_values(scene)
    panels = list(dict.fromkeys(value["panel"] for value in values))
    title, told = f"{scene.title}: {scene.measure} in the course of training", _averaged(scene).capitalize()
    x = alt.X("round:Q", title="Round", scale=alt.Scale(nice=False, zero=True), axis=alt.Axis(tickCount=5, grid=False))
    if scene.crowded:
        shown = [value for value in values if value["method"] != "Constant"]
        grid = _grid(scene, shown, x, "panel", panels, "round:Q")
        return _finish(grid, title, [told, f"Across: round. {_explained(scene)}"])
    picked = _legend_selection()
    base = alt.Chart().encode(
        x=x,
        y=_accuracy_axis(values),
        color=_method_colour(scene),
        opacity=_dimmed(picked),
        tooltip=_tooltip("round:Q"),
    )
    lines = base.transform_filter("datum.method != 'Constant'").mark_line()
    points = base.transform_filter("datum.method != 'Constant'").mark_point(filled=True, size=25)
    level = base.transform_filter("datum.method == 'Constant'").mark_line(strokeDash=[1, 3])
    marked = points.encode(shape=_method_shape(scene)).add_params(picked)
    header = alt.Header(labelOrient="top", labelAnchor="start", labelLimit=400)
    layered = alt.layer(*_band(scene, base, values, picked), level, lines, marked, data=alt.Data(values=values))
    return _finish(
        layered.properties(width=400, height=190).facet(row=alt.Row("panel:N", sort=panels, title=None, header=header)),
        title,
        told,
    )


def clients_chart(scene: FigureData) -> alt.TopLevelMixin:
    """Accuracy over the shifted cases, client by client; of many clients, one tick each."""
    title = f"{scene.title}: {scene.measure} of each client on shifted data"
    told = [f"Percent, {scene.when}, mean over {scene.shifted}. Dotted: a constant answer"]
    label_width = min(210, 7 * max(map(len, scene.methods)))
    names = alt.Axis(labelLimit=label_width + 10, ticks=False, domain=False)
    y = alt.Y("method:N", sort=scene.methods, title=None, axis=names)
    base = alt.Chart().encode(y=y, color=_method_colour(scene, told=False), tooltip=_tooltip("client:N"))
    percent: dict[str, Any] = {
        "title": None,
        "scale": alt.Scale(domain=[0, 100]),
        "axis": alt.Axis(values=[0, 50, 100], tickCount=3, labelOverlap=False),
    }
    x = alt.X("accuracy:Q", **percent)
    level = alt.Chart().mark_rule(strokeDash=[1, 3], color=CONSTANT[0], strokeWidth=2)
    level = level.encode(x=alt.X("mean(constant):Q", **percent))
    data, step = alt.Data(values=client_values(scene)), alt.Step(20)
    if scene.clients > MOST_CLIENTS:
        ticks = base.mark_tick(thickness=2, size=14, opacity=0.6).encode(x=x)
        chart = alt.layer(ticks, level, data=data).properties(width=520 - label_width, height=step)
        return _finish(chart, title, [*told, "One tick a client, mean over its seeds"])
    layers = [base.mark_bar(height=13).encode(x=x)]
    if scene.seeds > 1:
        told.append(f"Black lines: ± one standard deviation over {scene.seeds} seeds")
        layers.append(base.mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q", color=alt.value("#111111")))
    columns = min(4, scene.clients)
    panels = alt.layer(*layers, level, data=data).properties(width=(520 - label_width) / columns - 12, height=step)
    return _finish(
        panels.facet(alt.Facet("client:N", sort=scene.names, title=None), columns=columns, spacing=12), title, told
    )


def sensitivity_chart(scene: FigureData) -> alt.TopLevelMixin:
    """What the settings of a search do: one point a trial and measure, one panel a method."""
    values = sensitivity_values(scene)
    if not values:
        names = " or ".join(SETTINGS)
        raise UserError(f"Sensitivity needs a search over {names}; these runs have no two values of either.")
    measures = ["Average", "Worst case"]
    legend = alt.Legend(title=None, orient="bottom")
    rows = []
    for field, words in SETTINGS.items():
        of_field = [value for value in values if value["field"] == field]
        if not of_field:
            continue
        methods = list(dict.fromkeys(value["method"] for value in of_field))
        settings = [value["setting"] for value in of_field]
        low, high = math.floor(math.log10(min(settings))), math.ceil(math.log10(max(settings)))
        decades = [10.0**power for power in range(low, high + 1, max(1, math.ceil((high - low) / 3)))]
        x = alt.X(
            "setting:Q",
            title=None,
            scale=alt.Scale(type="log", domain=[10.0**low, 10.0**high], nice=False),
            axis=alt.Axis(values=decades, format="~g", labelFlush=True, labelOverlap=False),
        )
        points = (
            alt.Chart()
            .mark_point(filled=True, size=28, opacity=0.75)
            .encode(
                x=x,
                y=_accuracy_axis(values),
                color=alt.Color(
                    "measure:N", scale=alt.Scale(domain=measures, range=[AVERAGE[0], WORST[0]]), legend=legend
                ),
                shape=alt.Shape(
                    "measure:N", scale=alt.Scale(domain=measures, range=[AVERAGE[1], WORST[1]]), legend=legend
                ),
                tooltip=[
                    alt.Tooltip("trial:N", title="Trial"),
                    alt.Tooltip("setting:Q", title=field, format=".3g"),
                    alt.Tooltip("measure:N", title="Measure"),
                    alt.Tooltip("accuracy:Q", title="Accuracy (%)", format=".2f"),
                ],
            )
        )
        layered = alt.layer(*_level_rules(scene, values), points, data=alt.Data(values=of_field))
        panels = layered.properties(width=150, height=130).facet(
            alt.Facet("method:N", sort=methods, title=None), columns=3, spacing=14
        )
        panels = panels.resolve_axis(x="independent")
        rows.append(panels.properties(title=alt.TitleParams(f"Against {words}", fontSize=13, fontWeight="normal")))
    return _finish(
        alt.vconcat(*rows, spacing=20),
        f"{scene.title}: what the settings do",
        [f"Each trial's {scene.when}, over {scene.shifted}", _explained(scene)],
    )


KINDS = {
    "spectrum": spectrum_chart,
    "learning": learning_chart,
    "sensitivity": sensitivity_chart,
    "clients": clients_chart,
}
FOR_SEARCHES = ("sensitivity",)


def _grid(scene: FigureData, values: Values, x: alt.X, field: str, kinds: list[str], place: str) -> alt.FacetChart:
    """One panel a method, where one for all would be a thicket; `kinds` of line are told apart by their dashes."""
    methods = [method for method in scene.methods if scene.styles[method] != SHAPE_ONLY]
    shown = [value for value in values if value["method"] in methods]
    base = alt.Chart().encode(x=x.title(None), y=_accuracy_axis(values), color=_method_colour(scene, told=False))
    lines = base.mark_line(strokeWidth=2).encode(strokeDash=_dashes(field, kinds, shown=len(kinds) > 1))
    points = base.transform_filter(f"datum.{field} != 'the paper'").mark_point(filled=True, size=22)
    sparse = len({value.get("round") for value in shown}) <= 10  # else points would hide the dashes
    points = points.encode(opacity=alt.value(1 if sparse else 0))
    points = points.encode(tooltip=_tooltip(place))
    layers = [*_level_rules(scene, values), *_band(scene, base.encode(detail=f"{field}:N"), values), lines, points]
    panels = alt.layer(*layers, data=alt.Data(values=shown)).properties(width=150, height=130)
    names = json.dumps({method: textwrap.wrap(method, PANEL) for method in methods})
    header = alt.Header(labelExpr=f"{names}[datum.label]")
    facet = panels.facet(alt.Facet("method:N", sort=methods, title=None, header=header), columns=3, spacing=14)
    return facet.resolve_axis(x="independent")


def _level_rules(scene: FigureData, values: Values) -> list[alt.Chart]:
    """In every panel: a constant answer, and the shape without the shortcut."""
    dotted = alt.Chart().mark_rule(strokeDash=[1, 3], color=CONSTANT[0], strokeWidth=2)
    plain = alt.Chart().mark_rule(color=SHAPE_ONLY[0], strokeWidth=2)
    marks = {"constant": dotted, "shape_only": plain}
    return [marks[name].encode(y=_accuracy_axis(values, f"mean({name})")) for name in scene.levels]


def _explained(scene: FigureData) -> str:
    return "Dotted: a constant answer" + ("; grey: shape only" if "shape_only" in scene.levels else "")


def _dashes(field: str, kinds: list[str], shown: bool) -> alt.StrokeDash:
    legend = alt.Legend(title=None, orient="bottom", symbolStrokeColor="#333333", symbolSize=500, columns=2)
    scale = alt.Scale(domain=kinds, range=[[1, 0], [5, 3]][: len(kinds)])
    return alt.StrokeDash(f"{field}:N", scale=scale, legend=legend if shown else None)


def _legend_selection() -> alt.Parameter:
    return alt.selection_point(fields=["method"], bind="legend", name="picked")


def _dimmed(picked: alt.Parameter) -> Any:
    return alt.when(picked).then(alt.value(1.0)).otherwise(alt.value(0.08))


def _method_colour(scene: FigureData, told: bool = True) -> alt.Color:
    shown = _method_legend(scene) if told else None
    colours = [colour for colour, _ in scene.styles.values()]
    return alt.Color("method:N", scale=alt.Scale(domain=list(scene.styles), range=colours), legend=shown)


def _method_shape(scene: FigureData) -> alt.Shape:
    shapes = [shape for _, shape in scene.styles.values()]
    return alt.Shape("method:N", scale=alt.Scale(domain=list(scene.styles), range=shapes), legend=_method_legend(scene))


def _method_legend(scene: FigureData) -> alt.Legend:
    columns = 3 if max(map(len, scene.styles)) < 18 else 2
    return alt.Legend(title=None, orient="bottom", columns=columns, symbolOpacity=1)


def _accuracy_axis(values: Values, field: str = "accuracy") -> alt.Y:
    """From ten to ten, with room for the points at the edges; the same for every layer, or Vega would add zero."""
    ends = [
        value[name]
        for value in values
        for name in ("accuracy", "low", "high", "constant", "shape_only")
        if name in value
    ]
    low, high = 10 * math.floor((min(ends) - 1) / 10), 10 * math.ceil((max(ends) + 1) / 10)
    return alt.Y(f"{field}:Q", title="Accuracy (%)", scale=alt.Scale(domain=[max(0, low), min(100, high)], nice=False))


def _case_axis(scene: FigureData) -> alt.X:
    cases = scene.cases
    title = _sentence(_across(scene))
    if all(map(is_number, cases)):
        scale = alt.Scale(zero=False, nice=False, padding=8)
        axis = alt.Axis(values=[float(case) for case in cases], labelExpr="datum.value", grid=False)
        return alt.X("p:Q", title=title, scale=scale, axis=axis)
    return alt.X("case:N", sort=cases, title=title, axis=alt.Axis(labelAngle=0))


def _across(scene: FigureData) -> str:
    shortcut = SHORTCUTS.get(scene.table.benchmark)
    return f"how often the {shortcut} agrees with the label at test (p)" if shortcut else "test case"


def _training_range(scene: FigureData) -> list[alt.Chart]:
    """A shade over the p of the training contexts, where the benchmark has such a thing."""
    asked = next(iter(scene.runs.values()))[0].start["asked"]["data"].get("p_train")
    if not asked or not all(map(is_number, scene.cases)):
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


def _band(scene: FigureData, base: alt.Chart, values: Values, picked: alt.Parameter | None = None) -> list[alt.Chart]:
    if scene.seeds == 1:
        return []
    opacity = alt.value(0.18) if picked is None else alt.when(picked).then(alt.value(0.18)).otherwise(alt.value(0.02))
    shade = base.transform_filter("datum.high > datum.low").mark_area()
    return [shade.encode(y=_accuracy_axis(values, "low"), y2="high:Q", opacity=opacity)]


def _tooltip(*place: str) -> list[alt.Tooltip]:
    title = {"case:N": "Test case", "round:Q": "Round", "client:N": "Client"}
    return [
        alt.Tooltip("method:N", title="Method"),
        *(alt.Tooltip(name, title=title[name]) for name in place),
        alt.Tooltip("accuracy:Q", title="Accuracy (%)", format=".2f"),
    ]


def _averaged(scene: FigureData) -> str:
    band = f"; shade: ± one standard deviation over {scene.seeds} seeds" if scene.seeds > 1 else ""
    return f"mean over {scene.clients} clients{band}"


def _finish(chart: Any, title: str, told: str | list[str]) -> alt.TopLevelMixin:
    return chart.properties(title=alt.TitleParams(title, subtitle=told)).configure(**CONFIG)


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def published_charts(published: SearchRecords, rule_name: str, kind: str) -> dict[str, alt.TopLevelMixin]:
    """Of a published table: the runs and rounds that a rule takes, and of the search the best round of each trial."""
    when = f"round taken by {rule_name}"
    scenes = {
        "spectrum": lambda: look_at(published.taken(rule_name), when),
        "learning": lambda: look_at(published.taken(rule_name, to_the_end=True)),
        "clients": lambda: look_at(published.taken(rule_name), when),
        "sensitivity": lambda: look_at(published.searched_best(rule_name), f"best round by {rule_name}"),
    }
    return {name: draw(scenes[name]()) for name, draw in KINDS.items() if kind in (name, "all")}


def make_charts(runs: Sequence[Run], kind: str) -> dict[str, alt.TopLevelMixin]:
    """The charts asked for, by kind; `all` leaves out those that these runs are not for."""
    searched = is_search(runs)
    if kind == "all":
        kinds = [name for name in KINDS if (name in FOR_SEARCHES) == searched]
    elif searched and kind not in FOR_SEARCHES:
        raise UserError(
            f"These runs are the trials of a search; {kind} needs one chosen run a method, and --kind sensitivity "
            "shows a search."
        )
    elif not searched and kind in FOR_SEARCHES:
        raise UserError(f"{kind.capitalize()} needs the trials of a search; `perinvfl sweep` makes them.")
    else:
        kinds = [kind]
    scene = look_at(runs)
    return {name: KINDS[name](scene) for name in kinds}
