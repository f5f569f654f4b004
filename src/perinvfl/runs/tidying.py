"""What a process that was killed at the end of a run left undone."""

from contextlib import suppress
from pathlib import Path

from perinvfl.core.files import TEMPORARY, only_one, remove_temporary
from perinvfl.errors import Hindered, UserError
from perinvfl.runs.event_log import EVENTS, FINISHED, mark_finished, read_log
from perinvfl.runs.records import CHECKPOINT, Run


def mark_if_unmarked(run: Run) -> None:
    """A run may have been killed between its last event and the sign that it ended."""
    if not (run.folder / FINISHED).exists():
        with suppress(Hindered):  # a folder that is read-only stays as it is
            mark_finished(run.folder, read_log(run.folder / EVENTS).tallies[-1])


def tidy(folder: Path) -> None:
    """Remove what a killed process left beside a finished record, unless somebody is at work there."""
    if any(folder.glob(f".*{TEMPORARY}")):
        with suppress(UserError), only_one((folder / CHECKPOINT).with_suffix(".lock"), "in use"):
            remove_temporary(folder)
