"""The one place where text becomes what a terminal shows. Names, labels and errors are shown as they are.

Rich would read `[mg/dl]` as markup and `:smile:` as a picture, and a terminal obeys escape sequences in a name. A
console made here does none of this; colours are given as styles. A test sees to it that no other module makes one.
"""

from typing import Any

from rich.console import Console
from rich.progress import Task, TextColumn
from rich.text import Text

from perinvfl.core.naming import visible


class PlainConsole(Console):
    """A console that shows every text as it stands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every text comes by here, whether printed or in the cell, the head or the title of a table."""
        return super().render_str(visible(text), **{**options, "markup": False, "emoji": False, "highlight": False})


class PlainColumn(TextColumn):
    """A part of a progress bar: the text of a task's field."""

    def render(self, task: Task) -> Text:
        return Text(visible(self.text_format.format(task=task)))


def wide_console(stderr: bool = False) -> Console:
    """A terminal's own width; where there is none, wide enough for a table."""
    console = PlainConsole(stderr=stderr)
    return console if console.is_terminal else PlainConsole(stderr=stderr, width=160)
