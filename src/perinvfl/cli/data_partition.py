"""`perinvfl data partition`: who holds how many samples of which class, as a table and as a picture; of a regression,
how many samples and how large their labels are, as a table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from perinvfl.cli.columns import USUAL, named_or_guessed
from perinvfl.cli.options import Client, Context, Label
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
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the data, such as alpha=0.1 or clients=20."),
    ] = None,
    label: Label = None,
    client: Client = None,
    context: Context = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Draw it: files of this name, as SVG, PNG and a page.")
    ] = None,
) -> None:
    """Show who holds how many training samples of which class. Nothing is trained."""
    from perinvfl.core.naming import class_names, client_names
    from perinvfl.data.constant import label_counts

    asked = {"label": label, "client": client, "context": context}
    federation = _federation(source, set or [], {role: name for role, name in asked.items() if name is not None}, seed)
    clients = client_names(federation.schema.clients, federation.clients)
    if federation.task == "regression":
        if out is not None:
            raise UserError(f"--out: {federation.name} has numbers for labels, and the picture is one of classes.")
        _show(wide_console(), clients, ["mean label", "± deviation"], _labels(federation))
        return
    counts = label_counts("multiclass", federation.classes, federation.train)
    rows = [[str(sum(row)), *(str(count) if count else "·" for count in row)] for row in counts]
    _show(wide_console(), clients, class_names(federation.schema.classes, federation.classes), rows)
    if out is not None:
        from perinvfl.plots.files import write_chart
        from perinvfl.plots.partition import partition_chart

        stem = out.with_suffix("") if out.suffix in (".svg", ".png", ".html") else out
        for path in write_chart(partition_chart(federation), stem):
            say(path)


def _labels(federation: "Federation") -> list[list[str]]:
    """How many samples a client has, and the mean and deviation of their labels in the label's own unit."""
    schema, (_, y, context) = federation.schema, federation.train
    rows = []
    for values, present in zip(y.double() * schema.label_scale + schema.label_mean, context >= 0, strict=True):
        own = values[present]
        rows.append([str(len(own)), f"{own.mean():.4g}", f"{own.std(correction=0):.4g}"])
    return rows


def _federation(source: str, overrides: list[str], named: dict[str, str], seed: int) -> "Federation":
    from perinvfl.api import load
    from perinvfl.data.registry import build_federation
    from perinvfl.runs.experiment import parse_override, read_data_settings

    if Path(source).suffix == ".toml":
        overrides = [*(f"{role}={name}" for role, name in named.items()), *overrides]
        benchmark, settings = read_data_settings(Path(source), [f"data.{override}" for override in overrides])
        return build_federation(benchmark, settings, seed)
    given: dict[str, Any] = dict(map(parse_override, overrides))
    given = named | given
    if Path(source).exists():
        # Rows that no column gives a client are divided among clients that are made up.
        usual = USUAL | {"client": ""} if given.get("partition") else USUAL
        given |= named_or_guessed(Path(source), {role: given.get(role) for role in USUAL}, usual, quiet=False)
    return load(source, seed=seed, **given)


def _show(console: Console, clients: list[str], heads: list[str], rows: list[list[str]]) -> None:
    shown = RichTable(title="Training samples", title_justify="left", expand=False)
    for number, head in enumerate(["client", "samples", *heads]):
        shown.add_column(head, justify="right" if number else "left")
    for name, row in list(zip(clients, rows, strict=True))[:MOST_ROWS]:
        shown.add_row(name, *row)
    console.print(shown)
    if len(clients) > MOST_ROWS:
        console.print(f"... and {len(clients) - MOST_ROWS} more clients.")
