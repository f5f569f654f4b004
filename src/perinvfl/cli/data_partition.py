"""`perinvfl data partition`: who holds how many samples of which class, as a table and as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from perinvfl.core.saying import say
from perinvfl.errors import UserError
from perinvfl.terminal.console import wide_console

if TYPE_CHECKING:
    from perinvfl.data.federation import Federation

MOST_ROWS = 40  # clients in the table


def partition(
    source: Annotated[str, typer.Argument(help="A benchmark, an experiment file, or a file of your own data.")],
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of [data], such as alpha=0.1 or clients=20."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Draw it: files of this name, as SVG, PNG and a page.")
    ] = None,
) -> None:
    """Show who holds how many training samples of which class. Nothing is trained."""
    from perinvfl.core.naming import class_names, client_names
    from perinvfl.data.constant import label_counts

    federation = _federation(source, set or [], seed)
    if federation.task == "regression":
        raise UserError(f"{federation.name} has numbers for labels: there are no classes to count.")
    counts = label_counts("multiclass", federation.classes, federation.train)
    clients = client_names(federation.schema.clients, federation.clients)
    _show(wide_console(), clients, class_names(federation.schema.classes, federation.classes), counts)
    if out is not None:
        from perinvfl.plots.files import write_chart
        from perinvfl.plots.partition import partition_chart

        stem = out.with_suffix("") if out.suffix in (".svg", ".png", ".html") else out
        for path in write_chart(partition_chart(federation), stem):
            say(path)


def _federation(source: str, overrides: list[str], seed: int) -> "Federation":
    from perinvfl.api import load
    from perinvfl.data.registry import build_federation
    from perinvfl.runs.experiment import parse_override, read_data_settings

    if Path(source).suffix == ".toml":
        benchmark, settings = read_data_settings(Path(source), [f"data.{override}" for override in overrides])
        return build_federation(benchmark, settings, seed)
    given: dict[str, Any] = dict(map(parse_override, overrides))
    return load(source, seed=seed, **given)


def _show(console: Console, clients: list[str], classes: list[str], counts: list[list[float]]) -> None:
    shown = RichTable(title="Training samples", title_justify="left", expand=False)
    for number, head in enumerate(["client", "samples", *classes]):
        shown.add_column(head, justify="right" if number else "left")
    for name, row in list(zip(clients, counts, strict=True))[:MOST_ROWS]:
        shown.add_row(name, str(sum(row)), *(str(count) if count else "·" for count in row))
    console.print(shown)
    if len(clients) > MOST_ROWS:
        console.print(f"... and {len(clients) - MOST_ROWS} more clients.")
