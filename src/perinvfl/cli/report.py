"""`perinvfl report`: one offline page about runs."""

from pathlib import Path
from typing import Annotated

import typer

from perinvfl.cli.options import Method, Seed, pick_of


def report(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders with runs, packed files, or published tables (rc_mnist)."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("report.html"),
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="Diagnose one run of each method; else only runs whose folder is named.")
    ] = False,
    method: Method = None,
    seed: Seed = None,
) -> None:
    """Write one page that works offline: charts, numbers, clients, settings, diagnosis. Nothing is trained."""
    from perinvfl.core.files import write_atomically
    from perinvfl.report import gather, render_page

    write_atomically(out, render_page(gather(places, diagnose, pick_of(method, seed))).encode())
    print(out)
