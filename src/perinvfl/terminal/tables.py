"""Tables in a terminal: of results, and of a diagnosis."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable

from perinvfl.results.render import Text, cells
from perinvfl.results.table import Table

if TYPE_CHECKING:
    from perinvfl.diagnose import Diagnosis


LEAST_NAME = 12  # characters of a method's name in a narrow terminal


def show_table(console: Console, table: Table) -> None:
    """All columns where they fit; on a narrow terminal the paper's own, and a word on how to see the rest."""
    header, rows = cells(table)
    several = header[0] == "Data"
    data = [row[0] for _, row in rows] if several else []  # a line of its own above its rows, instead of a column
    if several:
        header, rows = header[1:], [(kind, row[1:]) for kind, row in rows]
    columns = len(header)
    widths = [max(len(line[column]) for line in [header, *(row for _, row in rows)]) + 3 for column in range(columns)]
    if sum(widths) + 1 > console.width:
        # Up to the worst case, and with groups up to the worst group.
        last = "Worst case" if "Worst case" in header else table.spectrum[-1]
        columns = header.index(last) + 1 + (2 if table.rows[0].by_group else 0)
    shown = RichTable(title=table.title, title_justify="left", expand=False)
    for number, title in enumerate(header[:columns]):
        least = min(widths[0] - 3, LEAST_NAME) if number == 0 else None  # names are not cut to nothing
        shown.add_column(title, justify="left" if number == 0 else "right", no_wrap=number > 0, min_width=least)
    for number, (kind, row) in enumerate(rows):
        if several and data[number] not in data[:number]:
            shown.add_section()
            shown.add_row(data[number], style="bold")
        shown.add_row(*row[:columns], style={"paper": "dim", "reference": "cyan"}.get(kind))
    console.print(shown)
    if columns < len(header):
        hidden = ", ".join(header[columns:])
        console.print(f"Not shown here: {hidden}; a wider terminal or --format md shows all.", style="dim")
    for note in table.notes:
        console.print(note, style="dim")


def show_text(console: Console, text: Text, reference: str = "") -> None:
    """A table that is text already. reference: the row that stands out, by its first cell."""
    shown = RichTable(title=text.title, title_justify="left", expand=False)
    for number, title in enumerate(text.header):
        shown.add_column(title, justify="left" if number == 0 else "right")
    for row in text.rows:
        shown.add_row(*row, style="cyan" if row[0] == reference else None)
    console.print(shown)
    for note in text.notes:
        console.print(note, style="dim")


def show_diagnosis(console: Console, diagnosis: "Diagnosis") -> None:
    """One table and the sentences for each client, and what stands out at the end."""
    error = diagnosis.task == "regression"
    for client in diagnosis.clients:
        shown = RichTable(title=client.client, title_justify="left", title_style="bold", expand=False)
        shown.add_column("context")
        for column in ("samples", "risk", "squared error" if error else "accuracy %", "calibration error", "penalty"):
            shown.add_column(column, justify="right")
        for context in client.contexts:
            name = context.name if context.seen else f"{context.name} (test)"
            score = f"{context.score:.4g}" if error else f"{100 * context.score:.1f}"
            numbers = (f"{context.risk:.3f}", score, f"{context.calibration:.3f}", f"{context.penalty:.4f}")
            shown.add_row(name, str(context.samples), *numbers)
        console.print(shown)
        for sentence in client.sentences.values():
            console.print(f"  {sentence}")
        console.print()
    for line in diagnosis.summary:
        console.print(line, style="bold")
