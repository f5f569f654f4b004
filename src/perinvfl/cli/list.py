"""`perinvfl list`: what an experiment file may name."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from perinvfl.runs.catalogue import Entry, read_catalogue
from perinvfl.runs.presets import preset_line, preset_names
from perinvfl.terminal.tables import wide_console


def show_catalogue() -> None:
    """Show algorithms, benchmarks and presets, with settings, defaults, search ranges and the paper's symbols."""
    console, catalogue = wide_console(), read_catalogue()
    for name, algorithm in catalogue.algorithms.items():
        _show_settings(console, f"algorithm {name}: {algorithm.title} ({algorithm.paper})", algorithm)
    for name, benchmark in catalogue.benchmarks.items():
        _show_settings(console, f"benchmark {name}: {benchmark.title}", benchmark)
    for section in catalogue.sections.values():
        _show_settings(console, section.title, section)
    shown = RichTable("preset", "what it is", title="presets", title_justify="left", title_style="bold")
    for name in preset_names():
        shown.add_row(name, preset_line(name))
    console.print(shown)


def _show_settings(console: Console, title: str, entry: Entry) -> None:
    shown = RichTable(title=escape(title), title_justify="left", title_style="bold", expand=False)
    for column in ("setting", "symbol", "default", "allowed", "search range", "meaning"):
        shown.add_column(column, overflow="fold")
    for setting in entry.settings:
        shown.add_row(
            setting.name, setting.symbol, setting.default_text, setting.allowed, setting.search, setting.meaning
        )
    console.print(shown)
