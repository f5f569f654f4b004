"""Who holds what: a circle for each client and class, its area the number of training samples."""

from collections.abc import Sequence

from perinvfl.core.naming import class_names, client_names, counted
from perinvfl.data.constant import label_counts
from perinvfl.data.federation import Federation
from perinvfl.errors import UserError
from perinvfl.plots import parts
from perinvfl.plots.parts import alt

STEP = 26  # pixels between two rows of circles
MOST_CLIENTS = 200
BLUE = "#0072B2"


def partition_chart(federation: Federation) -> alt.TopLevelMixin:
    """Clients across, classes up, and the number of samples of each client as bars above."""
    counts = label_counts("multiclass", federation.classes, federation.train)
    if len(counts) > MOST_CLIENTS:
        raise UserError(f"{len(counts)} clients are too many for one picture; {MOST_CLIENTS} can be told apart.")
    clients = client_names(federation.schema.clients, federation.clients)
    classes = class_names(federation.schema.classes, federation.classes)
    values = [
        {"client": client, "class": name, "samples": count}
        for client, row in zip(clients, counts, strict=True)
        for name, count in zip(classes, row, strict=True)
        if count
    ]
    sizes = [{"client": client, "samples": sum(row)} for client, row in zip(clients, counts, strict=True)]
    x = _client_axis(clients)
    circles = _circles(values, classes, x)
    bars = alt.Chart(alt.Data(values=sizes)).mark_bar(color=BLUE, opacity=0.7)
    bars = bars.encode(
        x=alt.X("client:N", sort=clients, axis=None),
        y=alt.Y("samples:Q", title="Samples", axis=alt.Axis(tickCount=3, grid=True)),
        tooltip=[alt.Tooltip("client:N", title="Client"), alt.Tooltip("samples:Q", title="Samples")],
    )
    width = max(260, STEP * min(len(clients), 40))
    chart = alt.vconcat(
        bars.properties(width=width, height=80), circles.properties(width=width, height=STEP * len(classes)), spacing=8
    ).resolve_scale(x="shared")
    total = int(federation.sizes.sum())
    words = f"{total} training samples of {counted(len(clients), 'client')}; the area of a circle is their number"
    return parts.finish(chart, f"{federation.name}: who holds what", words)


def _circles(values: list[dict[str, object]], classes: Sequence[str], x: alt.X) -> alt.Chart:
    return (
        alt.Chart(alt.Data(values=values))
        .mark_circle(opacity=0.85, color=BLUE)
        .encode(
            x=x,
            y=alt.Y("class:N", sort=list(classes), title="Class"),
            size=alt.Size("samples:Q", scale=alt.Scale(range=[4, STEP * STEP * 0.8]), legend=None),
            tooltip=[
                alt.Tooltip("client:N", title="Client"),
                alt.Tooltip("class:N", title="Class"),
                alt.Tooltip("samples:Q", title="Samples"),
            ],
        )
    )


def _client_axis(clients: Sequence[str]) -> alt.X:
    shown = alt.Axis(labelAngle=0 if max(map(len, clients)) < 4 else -45, labelOverlap=True)
    return alt.X("client:N", sort=list(clients), title="Client", axis=shown)
