"""How figures are drawn: one function per kind, from the data of a figure to an Altair chart."""

import json
import math
import textwrap
from collections.abc import Sequence
from typing import Any

from perinvfl.errors import UserError
from perinvfl.plots import parts
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
    is_search,
    learning_values,
    look_at,
    sensitivity_values,
    spectrum_values,
)
from perinvfl.plots.parts import alt  # which explains itself where Altair is missing
from perinvfl.results.search_records import SearchRecords
from perinvfl.runs.records import Run

PANEL = 23  # letters that fit over a panel
LONGEST = 300  # pixels of the name of a method; what is longer ends in an ellipsis


def make_charts(runs: Sequence[Run], kind: str) -> dict[str, alt.TopLevelMixin]:
    """The charts asked for, by kind; `all` leaves out those that these runs are not for."""
    searched = is_search(runs)
    if kind == "all":
        kinds = [name for name in KINDS if (name in FOR_SEARCHES) == searched]
    elif searched and kind not in FOR_SEARCHES:
        raise UserError(
            f"These runs are the trials of a search; {kind} needs one chosen run per method; --kind sensitivity "
            "shows a search."
        )
    elif not searched and kind in FOR_SEARCHES:
        raise UserError(f"{kind.capitalize()} needs the trials of a search; `perinvfl sweep` makes them.")
    else:
        kinds = [kind]
    figure = look_at(runs)
    return {name: KINDS[name](figure) for name in kinds}


def published_charts(published: SearchRecords, rule_name: str, kind: str) -> dict[str, alt.TopLevelMixin]:
    """Of a published table: the runs and rounds that a rule takes, and of the search the best round of each trial."""
    when = f"round chosen by {rule_name}"
    figures = {
        "spectrum": lambda: look_at(published.taken(rule_name), when),
        "learning": lambda: look_at(published.taken(rule_name, to_the_end=True)),
        "clients": lambda: look_at(published.taken(rule_name), when),
        "sensitivity": lambda: look_at(published.searched_best(rule_name), f"best round by {rule_name}"),
    }
    return {name: draw(figures[name]()) for name, draw in KINDS.items() if kind in (name, "all")}


def spectrum_chart(figure: FigureData) -> alt.TopLevelMixin:
    """Accuracy against p_test; the paper's numbers dashed."""
    values = spectrum_values(figure)
    shift = "as the shortcut stops holding" if figure.table.benchmark in SHORTCUTS else "by test case"
    title = f"{figure.title}: {figure.measure} {shift}"
    subtitle = f"{parts.sentence(figure.when)}, {parts.averaged(figure)}"
    compared = any(value["source"] == "the paper" for value in values)
    x = parts.case_axis(figure)
    if figure.crowded:
        shown = [value for value in values if value["source"] != "reference"]
        kinds = ["measured", "the paper"] if compared else ["measured"]
        grid = _grid(figure, shown, x, "source", kinds, "case:N")
        return parts.finish(grid, title, [subtitle, f"Across: {parts.across(figure)}", parts.explained(figure)])
    picked = parts.legend_selection()
    source = parts.dashes("source", ["measured", "the paper"], shown=compared)
    base = alt.Chart(alt.Data(values=values)).encode(
        x=x,
        y=parts.accuracy_axis(values),
        color=parts.method_colour(figure),
        opacity=parts.dimmed(picked),
        tooltip=parts.tooltip("case:N"),
    )
    lines = base.transform_filter("datum.source != 'reference'").mark_line().encode(strokeDash=source)
    points = base.transform_filter("datum.source == 'measured'").mark_point(filled=True, size=45, opacity=1)
    level = base.transform_filter("datum.source == 'reference'").mark_line(strokeDash=[1, 3], strokeWidth=2)
    layers = [*parts.training_range(figure), *parts.band(figure, base, values, picked), level, lines]
    layers.append(points.encode(shape=parts.method_shape(figure)).add_params(picked))
    return parts.finish(alt.layer(*layers).properties(width=400, height=300), title, subtitle)


def learning_chart(figure: FigureData) -> alt.TopLevelMixin:
    """Accuracy against the round, over the shifted cases and as in training."""
    values = learning_values(figure)
    panels = list(dict.fromkeys(value["panel"] for value in values))
    title, subtitle = f"{figure.title}: {figure.measure} during training", parts.averaged(figure).capitalize()
    x = alt.X("round:Q", title="Round", scale=alt.Scale(nice=False, zero=True), axis=alt.Axis(tickCount=5, grid=False))
    if figure.crowded:
        shown = [value for value in values if value["method"] != "Constant"]
        grid = _grid(figure, shown, x, "panel", panels, "round:Q")
        return parts.finish(grid, title, [subtitle, f"Across: round. {parts.explained(figure)}"])
    picked = parts.legend_selection()
    base = alt.Chart().encode(
        x=x,
        y=parts.accuracy_axis(values),
        color=parts.method_colour(figure),
        opacity=parts.dimmed(picked),
        tooltip=parts.tooltip("round:Q"),
    )
    lines = base.transform_filter("datum.method != 'Constant'").mark_line()
    points = base.transform_filter("datum.method != 'Constant'").mark_point(filled=True, size=25)
    level = base.transform_filter("datum.method == 'Constant'").mark_line(strokeDash=[1, 3])
    marked = points.encode(shape=parts.method_shape(figure)).add_params(picked)
    header = alt.Header(labelOrient="top", labelAnchor="start", labelLimit=400)
    layered = alt.layer(*parts.band(figure, base, values, picked), level, lines, marked, data=alt.Data(values=values))
    return parts.finish(
        layered.properties(width=400, height=190).facet(row=alt.Row("panel:N", sort=panels, title=None, header=header)),
        title,
        subtitle,
    )


def clients_chart(figure: FigureData) -> alt.TopLevelMixin:
    """Accuracy over the shifted cases, client by client; of many clients, one tick each."""
    title = f"{figure.title}: {figure.measure} of each client on {figure.test_data}"
    subtitle = [f"Percent, {figure.when}, mean over {figure.shifted}. Dotted: a constant answer"]
    label_width = min(210, 7 * max(map(len, figure.methods)))
    names = alt.Axis(labelLimit=LONGEST, ticks=False, domain=False)  # letters differ in width, so more than is expected
    y = alt.Y("method:N", sort=figure.methods, title=None, axis=names)
    base = alt.Chart().encode(y=y, color=parts.method_colour(figure, legend=False), tooltip=parts.tooltip("client:N"))
    percent: dict[str, Any] = {
        "title": None,
        "scale": alt.Scale(domain=[0, 100]),
        "axis": alt.Axis(values=[0, 50, 100], tickCount=3, labelOverlap=False),
    }
    x = alt.X("accuracy:Q", **percent)
    level = alt.Chart().mark_rule(strokeDash=[1, 3], color=CONSTANT[0], strokeWidth=2)
    level = level.encode(x=alt.X("mean(constant):Q", **percent))
    data, step = alt.Data(values=client_values(figure)), alt.Step(20)
    if figure.clients > MOST_CLIENTS:
        ticks = base.mark_tick(thickness=2, size=14, opacity=0.6).encode(x=x)
        chart = alt.layer(ticks, level, data=data).properties(width=520 - label_width, height=step)
        return parts.finish(chart, title, [*subtitle, "One tick per client, mean over seeds"])
    layers = [base.mark_bar(height=13).encode(x=x)]
    if figure.seeds > 1:
        subtitle.append(f"Black lines: ± one standard deviation over {figure.seeds} seeds")
        layers.append(base.mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q", color=alt.value("#111111")))
    columns = min(4, figure.clients)
    panels = alt.layer(*layers, level, data=data).properties(width=(520 - label_width) / columns - 12, height=step)
    return parts.finish(
        panels.facet(alt.Facet("client:N", sort=figure.names, title=None), columns=columns, spacing=12), title, subtitle
    )


def sensitivity_chart(figure: FigureData) -> alt.TopLevelMixin:
    """The effect of the settings of a search: one point per trial and measure, one panel per method."""
    values = sensitivity_values(figure)
    if not values:
        names = " or ".join(SETTINGS)
        raise UserError(f"Sensitivity needs a search over {names}; these runs have no two values of either.")
    rows = []
    for field, words in SETTINGS.items():
        of_field = [value for value in values if value["field"] == field]
        if of_field:
            title = alt.TitleParams(f"Against {words}", fontSize=13, fontWeight="normal")
            rows.append(_sensitivity_panels(figure, values, field, of_field).properties(title=title))
    return parts.finish(
        alt.vconcat(*rows, spacing=20),
        f"{figure.title}: effect of the settings",
        [f"Each trial's {figure.when}, over {figure.shifted}", parts.explained(figure)],
    )


def _sensitivity_panels(figure: FigureData, values: Values, field: str, of_field: Values) -> alt.FacetChart:
    """One panel per method, against one setting; `values` of all settings give the accuracy axis."""
    measures = ["Average", "Worst case"]
    legend = alt.Legend(title=None, orient="bottom")
    colours = alt.Scale(domain=measures, range=[AVERAGE[0], WORST[0]])
    shapes = alt.Scale(domain=measures, range=[AVERAGE[1], WORST[1]])
    points = (
        alt.Chart()
        .mark_point(filled=True, size=28, opacity=0.75)
        .encode(
            x=_log_axis([value["setting"] for value in of_field]),
            y=parts.accuracy_axis(values),
            color=alt.Color("measure:N", scale=colours, legend=legend),
            shape=alt.Shape("measure:N", scale=shapes, legend=legend),
            tooltip=[
                alt.Tooltip("trial:N", title="Trial"),
                alt.Tooltip("setting:Q", title=field, format=".3g"),
                alt.Tooltip("measure:N", title="Measure"),
                alt.Tooltip("accuracy:Q", title="Accuracy (%)", format=".2f"),
            ],
        )
    )
    layered = alt.layer(*parts.level_rules(figure, values), points, data=alt.Data(values=of_field))
    methods = list(dict.fromkeys(value["method"] for value in of_field))
    panels = layered.properties(width=150, height=130).facet(
        alt.Facet("method:N", sort=methods, title=None), columns=3, spacing=14
    )
    return panels.resolve_axis(x="independent")


def _log_axis(settings: list[float]) -> alt.X:
    """Whole decades, of which at most four are labelled."""
    low, high = math.floor(math.log10(min(settings))), math.ceil(math.log10(max(settings)))
    decades = [10.0**power for power in range(low, high + 1, max(1, math.ceil((high - low) / 3)))]
    return alt.X(
        "setting:Q",
        title=None,
        scale=alt.Scale(type="log", domain=[10.0**low, 10.0**high], nice=False),
        axis=alt.Axis(values=decades, format="~g", labelFlush=True, labelOverlap=False),
    )


KINDS = {
    "spectrum": spectrum_chart,
    "learning": learning_chart,
    "sensitivity": sensitivity_chart,
    "clients": clients_chart,
}
FOR_SEARCHES = ("sensitivity",)


def _grid(figure: FigureData, values: Values, x: alt.X, field: str, kinds: list[str], place: str) -> alt.FacetChart:
    """One panel per method, where too many would share one; dashes distinguish the `kinds` of line."""
    methods = [method for method in figure.methods if figure.styles[method] != SHAPE_ONLY]
    shown = [value for value in values if value["method"] in methods]
    base = alt.Chart().encode(
        x=x.title(None), y=parts.accuracy_axis(values), color=parts.method_colour(figure, legend=False)
    )
    lines = base.mark_line(strokeWidth=2).encode(strokeDash=parts.dashes(field, kinds, shown=len(kinds) > 1))
    points = base.transform_filter(f"datum.{field} != 'the paper'").mark_point(filled=True, size=22)
    sparse = len({value.get("round") for value in shown}) <= 10  # else points would hide the dashes
    points = points.encode(opacity=alt.value(1 if sparse else 0))
    points = points.encode(tooltip=parts.tooltip(place))
    layers = [
        *parts.level_rules(figure, values),
        *parts.band(figure, base.encode(detail=f"{field}:N"), values),
        lines,
        points,
    ]
    panels = alt.layer(*layers, data=alt.Data(values=shown)).properties(width=150, height=130)
    names = json.dumps({method: textwrap.wrap(method, PANEL) for method in methods})
    header = alt.Header(labelExpr=f"{names}[datum.label]")
    facet = panels.facet(alt.Facet("method:N", sort=methods, title=None, header=header), columns=3, spacing=14)
    return facet.resolve_axis(x="independent")
