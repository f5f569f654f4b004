"""`perinvfl plot`: figures of finished runs, or of a published table."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perinvfl.cli.options import Method, Rule, Seed, pick_of
from perinvfl.core.saying import say
from perinvfl.errors import UserError
from perinvfl.results.finished import check_has_records
from perinvfl.results.search_records import default_rule, published_folders, read_published
from perinvfl.runs.picking import Pick
from perinvfl.runs.records import find_runs

if TYPE_CHECKING:
    import altair as alt


class Kind(StrEnum):
    spectrum = "spectrum"
    learning = "learning"
    sensitivity = "sensitivity"
    clients = "clients"
    all = "all"


def plot(
    folder: Annotated[
        Path, typer.Argument(help="Folder with runs, such as runs/demo, a packed file, or a published table.")
    ],
    kind: Annotated[Kind, typer.Option("--kind", help="What to show.")] = Kind.all,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the figures; by default figures/ in FOLDER, or beside a packed file."),
    ] = None,
    rule: Rule = "",
    method: Method = None,
    seed: Seed = None,
) -> None:
    """Draw figures of finished runs or of a published table as SVG, PNG and a page that works offline.

    Nothing is trained.
    """
    from perinvfl.plots.files import write_chart  # an extra, and slow to import

    beside = folder if folder.is_dir() else folder.parent
    for stem, chart in _charts(folder, kind.value, rule, pick_of(method, seed)).items():
        for path in write_chart(chart, (out or beside / "figures") / stem):
            say(path)


def _charts(folder: Path, kind: str, rule: str, pick: Pick) -> dict[str, "alt.TopLevelMixin"]:
    """The charts by the names of their files."""
    from perinvfl.plots.charts import make_charts, published_charts

    published = published_folders(folder)
    if not published:
        check_has_records(folder)
        if rule:
            raise UserError(
                f"--rule {rule} is for figures of a published table; those of your own runs show all of them. "
                "`perinvfl table FOLDER --rule` ranks the settings of a search."
            )
        runs = pick.among(find_runs(folder))
        return {f"{runs[0].start['experiment']}-{name}": chart for name, chart in make_charts(runs, kind).items()}
    if pick:
        raise UserError(f"--method and --seed choose among your own runs; {folder} is a published table.")
    charts = {}
    for name, place in published.items():
        records = read_published(place)
        stem = name if len(published) == 1 else f"{folder.name}-{name}"
        for shown, chart in published_charts(records, rule or default_rule(records), kind).items():
            charts[f"{stem}-{shown}"] = chart
    return charts
