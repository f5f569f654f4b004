"""Whether what runs left behind is whole: every record, checkpoint and file of predictions below a folder.

Reads everything and changes nothing. Does not import torch.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from perinvfl.core.files import read_file
from perinvfl.core.sealed import read_sealed
from perinvfl.core.unpacking import parse_json
from perinvfl.errors import UserError
from perinvfl.runs.event_log import CHECKED_FROM, FINISHED, format_of, read_log
from perinvfl.runs.predictions import read_predictions
from perinvfl.runs.records import (
    CHECKPOINTS,
    EVENTS,
    PACKED,
    PREDICTIONS,
    Run,
    is_run,
    read_packed,
    read_run,
    run_folders,
)

OLDER = "older record, cannot be checked: its lines have no checks"


@dataclass(frozen=True)
class Finding:
    place: Path
    state: Literal["whole", "older", "damaged"]
    words: str


def verify(place: Path) -> list[Finding]:
    """One finding per run, and per file of packed runs."""
    if place.is_file() and place.name.endswith(PACKED):
        return [_packed(place)]
    if not place.is_dir():
        raise UserError(f"{place} is not a folder; give the folder that holds the runs, or a {PACKED} file.")
    found = [finding for folder in run_folders(place) if (finding := _folder(folder)) is not None]
    return found + [_packed(path) for path in sorted(place.rglob(f"*{PACKED}"))]


def _packed(path: Path) -> Finding:
    try:
        return Finding(path, "whole", f"{len(read_packed(path))} packed runs")
    except UserError as error:
        return Finding(path, "damaged", str(error))


def _folder(folder: Path) -> Finding | None:
    """None where the files are of another program."""
    try:
        run = read_run(folder)
        if run is None and not is_run(folder):
            return None
        if run is None:
            return Finding(folder, "damaged", f"{folder / EVENTS} is empty or was cut in its first line.")
        parts = [f"{len(run.events)} lines", *_beside(run)]
    except UserError as error:
        return Finding(folder, "damaged", str(error))
    except OSError as error:
        return Finding(folder, "damaged", f"{error.filename} cannot be read: {error.strerror}.")
    ended = "finished" if run.finished else "pruned" if run.pruned is not None else "not finished"
    state = "diverged" if run.broken is not None else ended
    if format_of(run.start) < CHECKED_FROM:
        return Finding(folder, "older", f"{state}, {OLDER}")
    return Finding(folder, "whole", f"{state}, {', '.join(parts)}")


def _beside(run: Run) -> list[str]:
    """The other files of a run that are there, each read to its end."""
    there = []
    if format_of(run.start) >= CHECKED_FROM and (run.folder / FINISHED).exists():
        _check_end(run.folder)
    for name in CHECKPOINTS:
        if (run.folder / name).exists():
            read_sealed(run.folder / name, "checkpoint", "restore it from a copy, or delete it to train the run again")
            there.append(name)
    if read_predictions(run) is not None:
        there.append(PREDICTIONS)
    elif "predictions" in run.events[-1]:
        raise UserError(f"{run.folder / PREDICTIONS} is missing, and the record says that it was written.")
    return there


def _check_end(folder: Path) -> None:
    """Of a run that ended, `finished.json` says with which line: that one is the last, and nothing follows it."""
    log = read_log(folder / EVENTS)
    try:
        said = parse_json(read_file(folder / FINISHED))
    except ValueError:
        said = None
    if said != asdict(log.tallies[-1]):
        raise UserError(
            f"{folder / FINISHED} does not fit the last line of {EVENTS}: one of the two was changed. The results can "
            "still be read; restore both from a copy, or delete the folder and give the command that made it again."
        )
