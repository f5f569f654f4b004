"""The page of a shortcut audit: one file, no script, readable on a phone and on paper."""

import time
from dataclasses import dataclass
from importlib.resources import files

import perinvfl
from perinvfl.audit import Audit, numbers, words
from perinvfl.audit.experiment import experiment
from perinvfl.audit.meaning import Meaning, Relation
from perinvfl.audit.without import Change
from perinvfl.report.page import page_environment

LEFT, WIDTH, LINE = 92.0, 360.0, 26.0  # of a chart: names, all of it, the height of one line
MOST_LINES = 24


@dataclass(frozen=True)
class Line:
    """One context or site in a chart, in its coordinates."""

    name: str
    y: float
    at: float | None
    low: float
    high: float
    text: str
    held_out: bool


@dataclass(frozen=True)
class Chart:
    title: str
    lines: list[Line]
    zero: float
    height: float
    ticks: list[tuple[float, str]]
    more: int  # that are not drawn


def render_audit(audit: Audit) -> str:
    here = files("perinvfl.report")
    template = page_environment().from_string(here.joinpath("audit.html.j2").read_text(encoding="utf-8"))
    return template.render(
        audit=audit,
        words=words,
        numbers=numbers,
        experiment=experiment(audit),
        made=time.strftime("%Y-%m-%d"),
        version=perinvfl.__version__,
        style=here.joinpath("page.css").read_text(encoding="utf-8"),
        charts={column.name: charts(column.meaning) for column in audit.columns},
        points=points,
        chance=chance,
        left=LEFT,
        width=WIDTH,
    )


def charts(meaning: Meaning) -> list[Chart]:
    made = []
    for title, relations in (("By context", meaning.contexts), ("By site", meaning.sites)):
        if sum(relation.strength is not None for relation in relations) > 1:
            made.append(_chart(title, relations))
    return made


def _chart(title: str, relations: list[Relation]) -> Chart:
    shown = relations[:MOST_LINES]
    ends = [end for relation in shown for end in relation.interval or ()]
    least, most = min(0.0, *ends), max(0.0, *ends)
    room = 0.05 * (most - least or 1.0)
    least, most = least - room, most + room

    def place(value: float) -> float:
        return round(LEFT + (value - least) / (most - least) * (WIDTH - LEFT - 12), 1)

    lines = []
    for number, relation in enumerate(shown):
        low, high = relation.interval or (0.0, 0.0)
        at = None if relation.strength is None else place(relation.strength)
        text = "too few rows, or one class or one value alone"
        if relation.strength is not None:
            text = f"{relation.strength:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}, {relation.rows} rows"
        y = LINE * (number + 0.5)
        lines.append(Line(relation.where, y, at, place(low), place(high), text.replace("-", "−"), relation.held_out))
    step = next((s for s in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0) if (most - least) / s <= 6), 20.0)
    ticks = [k * step for k in range(int(least / step), int(most / step) + 1)]
    marks = [(place(tick), f"{tick:g}".replace("-", "−")) for tick in ticks if least <= tick <= most]
    return Chart(title, lines, place(0.0), LINE * len(shown), marks, len(relations) - len(shown))


def points(change: Change | None) -> tuple[str, str]:
    """A change in points, and its interval."""
    if change is None:
        return "not tried", ""
    low, mean, high = (f"{100 * v + 0.0:+.1f}".replace("-", "−") for v in (change.low, change.mean, change.high))
    return mean, f"{low} to {high}"


def chance(value: float) -> str:
    """
    >>> chance(1e-30), chance(0.004), chance(0.3)
    ('less than 1 in 10 000', '1 in 250', 'nothing unusual')
    """
    if value < 1e-4:
        return "less than 1 in 10 000"
    return f"1 in {round(1 / value):,}".replace(",", " ") if value < 0.05 else "nothing unusual"
