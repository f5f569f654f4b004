"""`perinvfl table`: the table of finished runs, or a published one."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perinvfl.errors import UserError
from perinvfl.results.render import render, render_text
from perinvfl.results.search_records import default_rule, published_folders, read_published
from perinvfl.results.selection import RULES
from perinvfl.results.table import make_table, published_table, several_tables
from perinvfl.results.worlds import BOUND, WorldRecords, read_worlds, worlds_folder
from perinvfl.results.worlds_table import as_json, full_text, summary_text
from perinvfl.runs.records import find_runs
from perinvfl.terminal.tables import show_table, show_text, wide_console

if TYPE_CHECKING:
    from perinvfl.learning.groups import Score


class FileFormat(StrEnum):
    md = "md"
    csv = "csv"
    latex = "latex"
    json = "json"


class ScoreName(StrEnum):
    accuracy = "accuracy"
    balanced = "balanced"
    worst_group = "worst-group"


def table(
    place: Annotated[
        Path,
        typer.Argument(
            help="A published table (rc_mnist, rc_fmnist, ablation, beyond, waterbird, worlds), or a folder with runs."
        ),
    ],
    rule: Annotated[
        str,
        typer.Option(
            "--rule",
            help=f"Selection rule of a published table: {', '.join(RULES)}; by default the one the table is about.",
        ),
    ] = "",
    format: Annotated[
        FileFormat | None, typer.Option("--format", help="Format for a file; by default a table for the terminal.")
    ] = None,
    score: Annotated[
        ScoreName | None,
        typer.Option(
            "--score",
            help="Score of each test case, where tests have groups; by default accuracy, or balanced where several "
            "tables are shown at once.",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Of worlds, one row for each world instead of each method.")
    ] = False,
) -> None:
    """Show the table of finished runs, or a published one. Nothing is trained."""
    worlds = worlds_folder(place)
    if worlds is not None:
        _show_worlds(read_worlds(worlds), format, full)
        return
    if full:
        raise UserError(f"--full is for the table of worlds; {place} is another one.")
    published = {name: read_published(folder) for name, folder in published_folders(place).items()}
    shown: Score = score.value if score else "balanced" if len(published) > 1 else "accuracy"
    if not published:
        made = make_table(find_runs(place), shown)
    elif len(published) == 1:
        records = next(iter(published.values()))
        made = published_table(records, rule or default_rule(records), shown)
    else:
        made = several_tables(place.name, published, rule or default_rule(*published.values()), shown)
    if format is None:
        show_table(wide_console(), made)
    else:
        print(render(made, format.value))


def _show_worlds(records: WorldRecords, format: FileFormat | None, full: bool) -> None:
    if format is FileFormat.json:
        print(json.dumps(as_json(records), indent=2, ensure_ascii=False))
        return
    text = full_text(records) if full else summary_text(records)
    if format is None:
        show_text(wide_console(), text, BOUND)
    else:
        print(render_text(text, format.value))
