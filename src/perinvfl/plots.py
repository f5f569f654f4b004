"""Figures from records: runs in, Altair charts out, and files that need no network. Never trains."""

import json
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any

from perinvfl.checkpoint import write_atomically, writing
from perinvfl.errors import UserError
from perinvfl.folds import join_folds
from perinvfl.records import Event, Run, mean_known
from perinvfl.tables import Table, make_table

try:
    import altair as alt
    import vl_convert
except ModuleNotFoundError as missing:
    if missing.name not in ("altair", "vl_convert"):
        raise
    raise UserError("Figures need two more packages: pip install 'perinvfl[plot]'.") from None

Values = list[dict[str, Any]]

TITLES = {"rc_mnist": "RC-MNIST", "rc_fmnist": "RC-FMNIST", "waterbird": "Waterbird"}
SHORTCUTS = {"rc_mnist": "colour", "rc_fmnist": "colour", "waterbird": "background"}

# Colours of Okabe & Ito and of Tol, apart for colour-blind eyes; the shape of the points tells methods apart as well.
STYLES = {
    "perinvfl": ("#D55E00", "circle"),
    "fedavg": ("#56B4E9", "square"),
    "ditto": ("#0072B2", "triangle-up"),
    "irm": ("#009E73", "diamond"),
    "groupdro": ("#CC79A7", "cross"),
    "pfedme": ("#E69F00", "triangle-down"),
    "ftfa": ("#332288", "triangle-right"),
    "irm_l2": ("#999933", "triangle-left"),
    "irm_ft": ("#882255", "square"),
    "alone": ("#000000", "diamond"),
}
SPARE = (("#44AA99", "circle"), ("#AA4499", "triangle-up"), ("#661100", "cross"), ("#6699CC", "triangle-down"))
SHAPE_ONLY = ("#8C8C8C", "circle")
CONSTANT = ("#595959", "stroke")
WORST, AVERAGE = ("#D55E00", "triangle-down"), ("#0072B2", "circle")

SETTINGS = {"beta": "β, the pull of the personal model", "penalty_weight": "λ, the weight of the invariance penalty"}
IN_TRAINING = "0.9"  # a test case whose shortcut holds as often as in training
MOST_CLIENTS = 8  # that are shown one by one
MOST_METHODS = 6  # that share one panel; of more, each gets its own

CONFIG: dict[str, Any] = {
    "background": "white",
    "font": "Arial, Helvetica, sans-serif",
    "view": {"stroke": "#CCCCCC"},
    "title": {"fontSize": 16, "subtitleFontSize": 12, "subtitleColor": "#444444", "anchor": "start", "offset": 10},
    "axis": {"labelFontSize": 13, "titleFontSize": 13, "titleFontWeight": "normal", "gridColor": "#EAEAEA"},
    "legend": {"labelFontSize": 13, "labelLimit": 300, "symbolSize": 90, "symbolStrokeWidth": 2},
    "header": {"labelFontSize": 12, "labelLimit": 160, "labelFontWeight": "bold"},
}


# ---------------------------------------------------------------------------------------------------- what is shown


@dataclass(frozen=True)
class Scene:
    """Finished runs of one benchmark, by method, and how each method is drawn."""

    table: Table
    runs: dict[str, list[Run]]  # label -> its seeds
    styles: dict[str, tuple[str, str]]  # label -> colour and shape; the constant predictor last

    @property
    def title(self) -> str:
        return TITLES.get(self.table.benchmark, self.table.benchmark)

    @property
    def clients(self) -> int:
        return next(iter(self.runs.values()))[0].start["clients"]

    @property
    def seeds(self) -> int:
        return max(map(len, self.runs.values()))

    @property
    def methods(self) -> list[str]:
        return list(self.runs)

    @property
    def crowded(self) -> bool:
        return len(self.runs) > MOST_METHODS

    @property
    def levels(self) -> dict[str, float]:
        """Horizontal lines to compare with: the constant predictor, and shape only where one run shows it."""
        shape_only = [row.average for row in self.table.rows if self.styles.get(row.method) == SHAPE_ONLY]
        shape_only = shape_only if len(shape_only) == 1 else []
        return {"constant": self.table.rows[0].average, **({"shape_only": shape_only[0]} if shape_only else {})}

    @property
    def shifted(self) -> str:
        cases = self.table.spectrum
        words = cases[0] if len(cases) == 1 else f"{cases[0]} … {cases[-1]}"
        return f"p = {words}" if all(map(_is_number, cases)) else words


def look_at(runs: Sequence[Run]) -> Scene:
    kept = [run for run in runs if run.start["asked"]["data"].get("leave_out", -1) < 0]  # folds serve to choose only
    if runs and not kept:
        raise UserError("Every run here leaves a client out, which serves to choose settings, not to be shown.")
    kept = join_folds(kept)
    table = make_table(kept)
    if table.errors:
        raise UserError("Figures show accuracy; these runs are a regression, whose errors `perinvfl table` shows.")
    found: dict[str, list[Run]] = {}
    for run in kept:
        if run.finished and run.broken is None:
            found.setdefault(label_of(run), []).append(run)
    styles: dict[str, tuple[str, str]] = {}
    spare = cycle(SPARE)
    for label, same in found.items():
        asked = same[0].start["asked"]
        style = STYLES.get(asked["algorithm"]["name"])
        if asked["data"].get("grayscale", False):
            styles[label] = SHAPE_ONLY
        else:
            styles[label] = next(spare) if style is None or style in styles.values() else style
    styles["Constant"] = CONSTANT
    return Scene(table, found, styles)


def label_of(run: Run) -> str:
    return run.start["asked"]["algorithm"]["label"]


def is_search(runs: Iterable[Run]) -> bool:
    """Whether these are trials of a search, labelled such as "PerInvFL #12"."""
    return any(_trial(label_of(run)) for run in runs)


def _trial(label: str) -> re.Match[str] | None:
    return re.fullmatch(r"(?P<method>.+) #(?P<number>\d+)", label)


def _lead(event: Event) -> dict[str, list[float]]:
    """The personal models where there are any, else the global one."""
    return event.get("personal") or event["global"]


def _spread(values: Sequence[float]) -> dict[str, float]:
    mean, deviation = statistics.fmean(values), statistics.pstdev(values)
    return {"accuracy": mean, "low": mean - deviation, "high": mean + deviation}


def spectrum_values(scene: Scene) -> Values:
    """The table's numbers, one row a method and test case."""
    values = []
    for row in scene.table.rows:
        method = row.method.removesuffix(", paper") if row.kind == "paper" else row.method
        for case, (mean, deviation) in row.cases.items():
            values.append(
                {
                    "method": method,
                    "source": {"paper": "the paper", "measured": "measured"}.get(row.kind, "reference"),
                    "case": case,
                    **({"p": float(case)} if _is_number(case) else {}),
                    "accuracy": mean,
                    "low": mean - deviation,
                    "high": mean + deviation,
                    **scene.levels,
                }
            )
    return values


def learning_values(scene: Scene) -> Values:
    """Accuracy by round, over the shifted cases and in distribution; rounds that every seed has evaluated."""
    shifted, beyond = scene.table.spectrum, scene.table.beyond
    panels = {f"Shifted test data: mean over {scene.shifted}": shifted}
    if beyond:
        case = IN_TRAINING if IN_TRAINING in beyond else beyond[0]
        panels[f"Test data as in training: p = {case}" if case == IN_TRAINING else f"Test data at {case}"] = (case,)
    values = []
    for method, runs in scene.runs.items():
        by_round = [{event["round"]: _lead(event) for event in run.evaluations} for run in runs]
        rounds = sorted(set.intersection(*map(set, by_round)))
        for panel, cases in panels.items():
            for round in rounds:
                seeds = [100 * statistics.fmean(map(mean_known, _of(run[round], cases))) for run in by_round]
                values.append({"method": method, "panel": panel, "round": round, **_spread(seeds), **scene.levels})
    constant = scene.table.rows[0].cases
    last = max(value["round"] for value in values)
    for panel, cases in panels.items():
        level = statistics.fmean(constant[case][0] for case in cases)
        values += [{"method": "Constant", "panel": panel, "round": end, **_spread([level])} for end in (0, last)]
    return values


def _of(scores: dict[str, list[float]], cases: Sequence[str]) -> list[list[float]]:
    return [scores[case] for case in cases]


def client_values(scene: Scene) -> Values:
    """Accuracy of each client over the spectrum, last round."""
    spectrum = scene.table.spectrum
    values = []
    constants: dict[str, list[float]] = next(iter(scene.runs.values()))[0].start["notes"]["constant"]
    by_client = list(zip(*_of(constants, spectrum), strict=True))
    for method, runs in scene.runs.items():
        last = [_of(_lead(run.evaluations[-1]), spectrum) for run in runs]  # [seed][case][client]
        for client, constant in enumerate(by_client):
            if all(score is None for score in constant):
                continue  # a client without a sample of any of these cases
            seeds = [100 * mean_known(scores[client] for scores in of_seed) for of_seed in last]
            name, level = f"Client {client + 1}", 100 * mean_known(constant)
            values.append({"method": method, "client": name, **_spread(seeds), "constant": level})
    return values


def sensitivity_values(scene: Scene) -> Values:
    """Average and worst case of every trial, last round, beside each setting that its method makes use of."""
    rows = {row.method: row for row in scene.table.rows if row.kind == "measured"}
    values: Values = []
    for label, runs in scene.runs.items():
        trial, asked = _trial(label), runs[0].start["asked"]["algorithm"]
        for field in SETTINGS if trial else ():
            setting = asked.get(field)
            unused = field == "penalty_weight" and asked.get("invariance") == "groupdro"
            if isinstance(setting, int | float) and setting > 0 and not unused and trial:
                common = {"trial": label, "method": trial["method"], "field": field, "setting": setting}
                for measure, accuracy in (("Average", rows[label].average), ("Worst case", rows[label].worst)):
                    values.append({**common, "measure": measure, "accuracy": accuracy, **scene.levels})
    drawn: dict[tuple[str, str], set[float]] = {}
    for value in values:
        drawn.setdefault((value["method"], value["field"]), set()).add(value["setting"])
    return [value for value in values if len(drawn[value["method"], value["field"]]) > 1]


# ------------------------------------------------------------------------------------------------- how it is drawn


def spectrum_chart(scene: Scene) -> alt.TopLevelMixin:
    """Accuracy against p_test; the paper's numbers dashed."""
    values = spectrum_values(scene)
    shift = "as the shortcut stops holding" if scene.table.benchmark in SHORTCUTS else "by test case"
    title = f"{scene.title}: accuracy {shift}"
    told = f"Last round, {_averaged(scene)}"
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


def learning_chart(scene: Scene) -> alt.TopLevelMixin:
    """Accuracy against the round, over the shifted cases and as in training."""
    values = learning_values(scene)
    panels = list(dict.fromkeys(value["panel"] for value in values))
    title, told = f"{scene.title}: accuracy in the course of training", _averaged(scene).capitalize()
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


def clients_chart(scene: Scene) -> alt.TopLevelMixin:
    """Accuracy over the shifted cases, client by client; of many clients, one tick each."""
    title = f"{scene.title}: accuracy of each client on shifted data"
    told = [f"Percent, last round, mean over {scene.shifted}. Dotted: a constant answer"]
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
    order = [f"Client {client + 1}" for client in range(scene.clients)]
    return _finish(
        panels.facet(alt.Facet("client:N", sort=order, title=None), columns=columns, spacing=12), title, told
    )


def sensitivity_chart(scene: Scene) -> alt.TopLevelMixin:
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
        [f"Each trial's last round, over {scene.shifted}", _explained(scene)],
    )


KINDS = {
    "spectrum": spectrum_chart,
    "learning": learning_chart,
    "sensitivity": sensitivity_chart,
    "clients": clients_chart,
}
FOR_SEARCHES = ("sensitivity",)


def _grid(scene: Scene, values: Values, x: alt.X, field: str, kinds: list[str], place: str) -> alt.FacetChart:
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
    facet = panels.facet(alt.Facet("method:N", sort=methods, title=None), columns=3, spacing=14)
    return facet.resolve_axis(x="independent")


def _level_rules(scene: Scene, values: Values) -> list[alt.Chart]:
    """In every panel: a constant answer, and the shape without the shortcut."""
    dotted = alt.Chart().mark_rule(strokeDash=[1, 3], color=CONSTANT[0], strokeWidth=2)
    plain = alt.Chart().mark_rule(color=SHAPE_ONLY[0], strokeWidth=2)
    marks = {"constant": dotted, "shape_only": plain}
    return [marks[name].encode(y=_accuracy_axis(values, f"mean({name})")) for name in scene.levels]


def _explained(scene: Scene) -> str:
    return "Dotted: a constant answer" + ("; grey: shape only" if "shape_only" in scene.levels else "")


def _dashes(field: str, kinds: list[str], shown: bool) -> alt.StrokeDash:
    legend = alt.Legend(title=None, orient="bottom", symbolStrokeColor="#333333", symbolSize=500, columns=2)
    scale = alt.Scale(domain=kinds, range=[[1, 0], [5, 3]][: len(kinds)])
    return alt.StrokeDash(f"{field}:N", scale=scale, legend=legend if shown else None)


def _legend_selection() -> alt.Parameter:
    return alt.selection_point(fields=["method"], bind="legend", name="picked")


def _dimmed(picked: alt.Parameter) -> Any:
    return alt.when(picked).then(alt.value(1.0)).otherwise(alt.value(0.08))


def _method_colour(scene: Scene, told: bool = True) -> alt.Color:
    shown = _method_legend(scene) if told else None
    colours = [colour for colour, _ in scene.styles.values()]
    return alt.Color("method:N", scale=alt.Scale(domain=list(scene.styles), range=colours), legend=shown)


def _method_shape(scene: Scene) -> alt.Shape:
    shapes = [shape for _, shape in scene.styles.values()]
    return alt.Shape("method:N", scale=alt.Scale(domain=list(scene.styles), range=shapes), legend=_method_legend(scene))


def _method_legend(scene: Scene) -> alt.Legend:
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


def _case_axis(scene: Scene) -> alt.X:
    cases = list(scene.table.rows[0].cases)
    across = _across(scene)
    title = across[0].upper() + across[1:]
    if all(map(_is_number, cases)):
        scale = alt.Scale(zero=False, nice=False, padding=8)
        axis = alt.Axis(values=[float(case) for case in cases], labelExpr="datum.value", grid=False)
        return alt.X("p:Q", title=title, scale=scale, axis=axis)
    return alt.X("case:N", sort=cases, title=title, axis=alt.Axis(labelAngle=0))


def _across(scene: Scene) -> str:
    shortcut = SHORTCUTS.get(scene.table.benchmark)
    return f"how often the {shortcut} agrees with the label at test (p)" if shortcut else "test case"


def _is_number(case: str) -> bool:
    try:
        return math.isfinite(float(case))
    except ValueError:
        return False


def _training_range(scene: Scene) -> list[alt.Chart]:
    """A shade over the p of the training contexts, where the benchmark has such a thing."""
    asked = next(iter(scene.runs.values()))[0].start["asked"]["data"].get("p_train")
    if not asked or not all(map(_is_number, scene.table.rows[0].cases)):
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


def _band(scene: Scene, base: alt.Chart, values: Values, picked: alt.Parameter | None = None) -> list[alt.Chart]:
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


def _averaged(scene: Scene) -> str:
    band = f"; shade: ± one standard deviation over {scene.seeds} seeds" if scene.seeds > 1 else ""
    return f"mean over {scene.clients} clients{band}"


def _finish(chart: Any, title: str, told: str | list[str]) -> alt.TopLevelMixin:
    return chart.properties(title=alt.TitleParams(title, subtitle=told)).configure(**CONFIG)


# ------------------------------------------------------------------------------------------------------------ files


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


def write_chart(chart: alt.TopLevelMixin, stem: Path) -> list[Path]:
    """Three files beside each other: SVG, PNG, and a page that stands alone."""
    spec = chart.to_dict()
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
    told = json.dumps({**spec, "usermeta": {"embedOptions": {"actions": actions}}}, ensure_ascii=False)
    empty = {"$schema": spec["$schema"], "data": {"values": []}, "mark": "point"}
    head, marker, rest = vl_convert.vegalite_to_html(empty, bundle=True).rpartition("const spec = ")
    title = escape(spec["title"]["text"])
    head = head.replace("<html>", '<html lang="en">', 1).replace("<title>Chart</title>", f"<title>{title}</title>", 1)
    return head + marker + told.replace("</", "<\\/") + rest[rest.index(";\n") :]
