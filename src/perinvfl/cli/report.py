"""`perinvfl report`: one offline page about runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from perinvfl.cli.options import Method, Seed, pick_of
from perinvfl.core.saying import say
from perinvfl.terminal.console import PlainColumn, wide_console

if TYPE_CHECKING:
    from perinvfl.report.data import Begin


def report(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders with runs, packed files, or published tables (rc_mnist)."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("report.html"),
    diagnose: Annotated[
        bool,
        typer.Option("--diagnose", help="Diagnose one run of each method; by default only runs whose folder is named."),
    ] = False,
    method: Method = None,
    seed: Seed = None,
) -> None:
    """Write one page that works offline: charts, numbers, clients, settings, diagnosis. Nothing is trained."""
    from perinvfl.core.files import write_atomically
    from perinvfl.report import gather, render_page

    with _showing_diagnoses() as begin:
        page = gather(places, diagnose, pick_of(method, seed), begin)
    write_atomically(out, render_page(page).encode())
    say(out)


@contextmanager
def _showing_diagnoses() -> "Iterator[Begin]":
    """Which run is being diagnosed: a line that changes in a terminal, lines in a log, both on stderr."""
    console = wide_console(stderr=True)
    if not console.is_terminal:
        yield lambda name, number, runs: say(f"diagnosing {name} ({number} of {runs})", stderr=True)
        return
    columns = (
        SpinnerColumn(),
        PlainColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with RichProgress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=None, visible=False)

        def begin(name: str, number: int, runs: int) -> None:
            shown.update(task, description=f"diagnosing {name}", completed=number - 1, total=runs, visible=True)

        yield begin
