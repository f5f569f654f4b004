"""The figures, from the records alone. The only module here that needs Altair."""

from typing import Any

import altair as alt

from perinvfl.theory.common import Record

INK = "#333333"
SEQUENCE = ["#c6dbef", "#9ecae1", "#6baed6", "#3182bd", "#08306b"]  # small β to large β
WIDTH, HEIGHT = 340, 300
FLOOR = "best personal invariant"


def _values(rows: list[Record]) -> alt.Data:
    return alt.Data(values=rows)


def _finish(chart: Any, title: str, subtitle: str) -> Any:
    return (
        chart.properties(title=alt.TitleParams(title, subtitle=subtitle, anchor="start", fontSize=15, offset=12))
        .configure(background="white", padding=12)
        .configure_view(stroke=None)
        .configure_title(fontSize=12, fontWeight="normal", anchor="start")
        .configure_axis(gridColor="#eeeeee", labelFontSize=11, titleFontSize=12, titleFontWeight="normal")
        .configure_legend(labelFontSize=11, titleFontSize=12, labelLimit=300, symbolOpacity=1)
    )


# Personalized invariance -------------------------------------------------------------------------------------------


def personalized_chart(record: Record) -> Any:
    betas = [f"β = {beta:g}" for beta in record["settings"]["beta"]]
    thetas = [f"θ, {name}" for name in betas]
    colours = dict(zip(thetas, SEQUENCE, strict=False)) | {
        "ν (IRM)": "#2ca02c",
        "FedAvg": "#d62728",
        "Ditto": "#ff7f0e",
        FLOOR: INK,
    }
    names = dict(zip(betas, thetas, strict=True)) | {
        "ν": "ν (IRM)",
        "FedAvg": "FedAvg",
        "Ditto": "Ditto",
        "floor": FLOOR,
    }
    exact, trained = (_spreads(record[key], names) for key in ("exact", "trained"))
    reached = record["settings"]["trained_contexts"]
    trained += [row for row in exact if row["model"] == FLOOR and row["contexts"] in reached]
    bounds = _bounds(record)
    both = alt.hconcat(
        _personalized_panel(
            exact,
            bounds,
            colours,
            "Minimisers of the objectives (what the theorem is about)",
            "squared error on unseen contexts",
        ),
        _personalized_panel(trained, bounds, colours, "Reached by the algorithm's own steps", None),
    )
    return _finish(
        both, "Personalized invariance", "mean and standard deviation over seeds; population data; log scale"
    )


def _spreads(rows: list[Record], names: dict[str, str]) -> list[Record]:
    return [
        {
            "contexts": row["contexts"],
            "model": names[row["model"]],
            "mean": row["mean"],
            "low": max(row["mean"] - row["std"], 0.5),
            "high": row["mean"] + row["std"],
        }
        for row in rows
        if row["model"] in names
    ]


def _personalized_panel(
    data: list[Record], bounds: list[Any], colours: dict[str, str], title: str, y: str | None
) -> Any:
    order = list(colours)
    base = alt.Chart(_values(data)).encode(
        x=alt.X(
            "contexts:Q",
            title="contexts per client",
            scale=alt.Scale(domain=[0.5, 11.5], nice=False),
            axis=alt.Axis(tickMinStep=1, format="d"),
        ),
        color=alt.Color(
            "model:N",
            title="model",
            sort=order,
            scale=alt.Scale(domain=order, range=list(colours.values())),
            legend=alt.Legend(),
        ),
    )
    line = base.mark_line(point=alt.OverlayMarkDef(size=35)).encode(
        y=alt.Y(
            "mean:Q",
            title=y,
            scale=alt.Scale(type="log", domain=[0.9, 30], nice=False),
            axis=alt.Axis(values=[1, 2, 5, 10, 20]),
        )
    )
    dashed = [row for row in data if row["model"] == "ν (IRM)"]  # on top of large β, where they coincide
    over = alt.Chart(_values(dashed)).mark_line(strokeDash=[5, 5], color=colours["ν (IRM)"])
    over = over.encode(x="contexts:Q", y="mean:Q")
    spread = base.mark_rule(opacity=0.5).encode(y=alt.Y("low:Q", title=y), y2="high:Q")
    return alt.layer(*bounds, spread, line, over).properties(width=WIDTH, height=HEIGHT, title=title)


def _bounds(record: Record) -> list[Any]:
    """How many contexts the theorem asks for, and how many by counting, as labelled lines."""
    bounds = [
        {"at": record["bound"], "y": 10, "label": f"Theorem 3: {record['bound']:g}"},
        {"at": record["fewest_by_counting"], "y": 26, "label": f"d + 1 = {record['fewest_by_counting']}"},
    ]
    rules = alt.Chart(_values(bounds)).mark_rule(strokeDash=[4, 3], color="#888888").encode(x="at:Q")
    text = (
        alt.Chart(_values(bounds))
        .mark_text(align="left", dx=4, dy=0, color="#666666", fontSize=10)
        .encode(x="at:Q", y=alt.Y("y:Q", scale=None), text="label:N")
    )
    return [rules, text]


# Convergence -------------------------------------------------------------------------------------------------------

STEP_KINDS = ["step by the formula", "step limited by γ_0"]


def convergence_chart(record: Record) -> Any:
    alphas = sorted({row["alpha"] for row in record["rows"]})
    both = alt.hconcat(*(_convergence_panel(record, alpha, first=alpha == alphas[0]) for alpha in alphas))
    return _finish(
        both, "Convergence of the global model", "step sizes as Theorem 2 prescribes; slopes with 95 % bands"
    )


def _convergence_panel(record: Record, alpha: float, first: bool) -> Any:
    horizons = [row["T"] for row in record["rows"]]
    low, high = min(horizons), max(horizons)
    steps = [str(r) for r in sorted({row["R"] for row in record["rows"]})]
    x = alt.X(
        "T:Q",
        title="horizon T (rounds)",
        scale=alt.Scale(type="log", domain=[low * 0.9, high * 1.1], nice=False),
        axis=alt.Axis(values=sorted(set(horizons)), format="d", labelOverlap=False),
    )
    y = alt.Y(
        "value:Q",
        title="mean over t of ‖∇L(ν_t)‖²" if first else None,
        scale=alt.Scale(type="log", nice=False, domain=[0.02, 2.0]),
    )
    colour = alt.Color(
        "R:N",
        title="local steps R",
        sort=steps,
        scale=alt.Scale(domain=steps, range=["#1f77b4", "#ff7f0e", "#2ca02c"]),
    )
    shape = alt.Shape("kind:N", title="", scale=alt.Scale(domain=STEP_KINDS, range=["circle", "triangle-up"]))
    mine = _gradients(record["rows"], alpha)
    base = alt.Chart(_values(mine))
    line = base.mark_line(opacity=0.6).encode(x=x, y=y, color=colour)
    dots = base.mark_point(size=55, filled=True, opacity=1).encode(x=x, y=y, color=colour, shape=shape)
    start = max(row["value"] for row in mine if row["T"] == low) * 1.5
    guide = [{"T": t, "value": start * (t / low) ** (-2 / 3)} for t in (low, high)]
    rate = alt.Chart(_values(guide)).mark_line(strokeDash=[5, 4], color=INK).encode(x=x, y=y)
    name = (
        alt.Chart(_values(guide[1:]))
        .mark_text(align="right", dy=-32, color=INK, fontSize=11)
        .encode(x=x, y=y, text=alt.value("slope −2/3"))
    )
    notes = _slopes(record["fits"], alpha, colour)
    return alt.layer(line, rate, dots, name, *notes).properties(width=WIDTH, height=HEIGHT, title=f"α = {alpha:g}")


def _gradients(rows: list[Record], alpha: float) -> list[Record]:
    return [
        {
            "T": row["T"],
            "R": str(row["R"]),
            "value": row["mean_squared_gradient"],
            "kind": STEP_KINDS[1] if row["limited_by_gamma_0"] else STEP_KINDS[0],
        }
        for row in rows
        if row["alpha"] == alpha
    ]


def _slopes(fits: list[Record], alpha: float, colour: alt.Color) -> list[Any]:
    """The fitted slopes as text, the last one lowest."""
    slopes = [
        {
            "R": str(fit["R"]),
            "text": f"R = {fit['R']}: slope {fit['slope']:.2f} [{fit['low']:.2f}, {fit['high']:.2f}]".replace("-", "−"),
        }
        for fit in fits
        if fit["alpha"] == alpha
    ]
    return [
        alt.Chart(_values([slope]))
        .mark_text(align="left", fontSize=11)
        .encode(x=alt.value(8), y=alt.value(HEIGHT - 12 - 16 * place), text="text:N", color=colour)
        for place, slope in enumerate(reversed(slopes))
    ]


# Mutual information ------------------------------------------------------------------------------------------------


def information_chart(record: Record) -> Any:
    both = alt.hconcat(_information_panel(record["rows"]), _correlated_panel(record["correlated"]))
    both = both.resolve_scale(color="independent")
    return _finish(both, "Mutual information gained by personal invariance", "mean and standard deviation over seeds")


def _information_panel(given: list[Record]) -> Any:
    names = {
        "gap": "gap, closed form",
        "sampled_gap": "gap, from samples",
        "p_mean_delta": "p · mean of I(Y; Z)",
        "p_delta": "pδ, the bound",
    }
    rows = [
        {
            "p": row["p"],
            "kind": label,
            "mean": row[key]["mean"],
            "low": row[key]["mean"] - row[key]["std"],
            "high": row[key]["mean"] + row[key]["std"],
        }
        for row in given
        for key, label in names.items()
    ]
    x = alt.X("p:Q", title="share p of heterogeneous clients")
    colour = alt.Color(
        "kind:N",
        title="",
        sort=list(names.values()),
        scale=alt.Scale(domain=list(names.values()), range=["#1f77b4", "#ff7f0e", "#999999", INK]),
    )
    base = alt.Chart(_values(rows)).encode(x=x, color=colour)
    line = (
        base.transform_filter(alt.datum.kind != names["sampled_gap"])
        .mark_line()
        .encode(y=alt.Y("mean:Q", title="nats"))
    )
    spread = (
        base.transform_filter(alt.datum.kind != names["sampled_gap"])
        .mark_area(opacity=0.12)
        .encode(y="low:Q", y2="high:Q")
    )
    dots = (
        base.transform_filter(alt.datum.kind == names["sampled_gap"])
        .mark_point(size=50, filled=True)
        .encode(y="mean:Q")
    )
    return alt.layer(spread, line, dots).properties(
        width=WIDTH, height=HEIGHT, title="Shared and personal part independent (structural equations)"
    )


def _correlated_panel(given: list[Record]) -> Any:
    pairs = {"gap": "I(Y; Φ_i) − I(Y; Φ_g)", "delta": "δ = I(Y; Z)"}
    other = [
        {"correlation": row["correlation"], "kind": label, "value": row[key]}
        for row in given
        for key, label in pairs.items()
    ]
    return (
        alt.Chart(_values(other))
        .mark_line(point=True)
        .encode(
            x=alt.X("correlation:Q", title="correlation of the personal with the shared part"),
            y=alt.Y("value:Q", title="nats"),
            color=alt.Color(
                "kind:N",
                title="one heterogeneous client",
                sort=list(pairs.values()),
                scale=alt.Scale(domain=list(pairs.values()), range=["#1f77b4", INK]),
            ),
        )
        .properties(width=WIDTH, height=HEIGHT, title="Where the theorem's step fails: the gap below δ")
    )


# β against the number of contexts ----------------------------------------------------------------------------------


def remark_chart(record: Record) -> Any:
    kinds = list(dict.fromkeys(row["data"] for row in record["rows"]))
    panels = []
    for kind in kinds:
        mine = [row for row in record["rows"] if row["data"] == kind]
        best = [row for row in record["best"] if row["data"] == kind]
        number = len({row["contexts"] for row in mine})
        digits = kind == "RC-MNIST"
        x = alt.X(
            "beta:Q",
            title="β",
            scale=alt.Scale(type="log"),
            axis=alt.Axis(format="~e", values=[10.0**k for k in range(-2, 6)], grid=False),
        )
        y = alt.Y(
            "error:Q",
            title="classification error on unseen contexts" if digits else "squared error on unseen contexts",
            scale=alt.Scale(zero=False) if digits else alt.Scale(type="log", domain=[1, 30], clamp=True),
            axis=alt.Axis(format="%") if digits else alt.Axis(values=[1, 2, 5, 10, 20]),
        )
        colour = alt.Color(
            "contexts:O",
            title="contexts per client",
            scale=alt.Scale(range=["#c7e9b4", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#0c2c84"][6 - number :]),
        )
        line = alt.Chart(_values(mine)).mark_line().encode(x=x, y=y, color=colour)
        dots = (
            alt.Chart(_values(best))
            .mark_point(size=90, filled=True, opacity=1, stroke=INK, strokeWidth=1.2)
            .encode(x=x, y=y, color=colour)
        )
        title = kind if digits else f"Structural equations: {kind}"
        panels.append(alt.layer(line, dots).properties(width=270, height=HEIGHT, title=title))
    chart = alt.hconcat(*panels).resolve_scale(color="independent")
    return _finish(
        chart, "β against the number of contexts", "dots: the best β for each number of contexts; mean over seeds"
    )
