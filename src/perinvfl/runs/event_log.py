"""The file of a run's events: one JSON line per event, each chained to all before it by a check.

A line ends with `"check"`, a hash of the line and of the check before it, so that a line that was changed, lost,
doubled or moved is noticed. Lines lost at the end are noticed by who counts on them: a checkpoint holds the number of
lines it was written after and the last check (`Tally`), and `finished.json` says that the run ended. A file that ends
within a line, and that nobody counts on, is of a run that was killed: it is short, not damaged. Records before format
3 have no checks; of them only the form is looked at. Does not import torch.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perinvfl.core import files
from perinvfl.core.naming import in_short, is_whole_text
from perinvfl.core.unpacking import HALF, parse_json
from perinvfl.errors import UserError
from perinvfl.runs.facts import FORMAT

EVENTS = "events.jsonl"
FINISHED = "finished.json"
CHECKED_FROM = 3  # the first format whose lines have checks
CUT_SHORT = "it is empty or was cut in its first line"
CHECK = re.compile(rb',"check":"([0-9a-f]{16})"\}$')
Event = dict[str, Any]


@dataclass(frozen=True)
class Tally:
    """How far a record goes: its lines, and the check of the last of them."""

    lines: int = 0
    check: str = ""

    def after(self, body: bytes) -> "Tally":
        """With one more line, given as it is without its check."""
        return Tally(self.lines + 1, hashlib.sha256(self.check.encode() + b"\n" + body).hexdigest()[:16])


@dataclass(frozen=True)
class EventLog:
    """What a file holds: its whole lines."""

    events: list[Event]
    bodies: list[bytes]  # the lines without their checks
    tallies: list[Tally]  # after each line

    @property
    def checked(self) -> bool:
        return bool(self.events) and format_of(self.events[0]) >= CHECKED_FROM

    @property
    def ended(self) -> bool:
        return any(event["event"] in ("end", "broken") for event in self.events)


def format_of(start: Event) -> int:
    """The format of a record by its first event; the oldest ones do not name it."""
    found = start.get("format", 1)
    return found if isinstance(found, int) else 1


def refuse_later(place: Path, start: Event) -> None:
    found = format_of(start)
    if found > FORMAT:
        raise UserError(
            f"{place} holds a record of format {found}, and this version of perinvfl reads formats up to {FORMAT}; "
            "read it with the version that wrote it, or a later one."
        )


def chained(events: Iterable[Event]) -> bytes:
    """Events as the lines of a file, with their checks."""
    lines, tally = [], Tally()
    for event in events:
        body = _body(event)
        tally = tally.after(body)
        lines.append(_line(body, tally))
    return b"".join(lines)


def read_log(path: Path, counted: Tally | None = None) -> EventLog:
    """All whole lines of a file. counted: the lines that a checkpoint counts on, which must be there as they were."""
    lines = files.read_file(path).split(b"\n")
    torn = lines.pop()  # what follows the last newline: nothing, or a line that was being written
    lines += [torn] if torn else []
    log, needed = EventLog([], [], []), counted.lines if counted else 0
    for number, line in enumerate(lines, start=1):
        fault = _take(log, line, path.parent)
        if not fault:
            continue
        # Behind what is counted on there is what was being written when a run was killed, or the power failed.
        if number > needed and (counted is not None or (number == len(lines) and torn)):
            break
        raise UserError(damaged(path, f"line {number} {fault}"))
    if len(log.events) < needed:
        raise UserError(damaged(path, f"it holds {len(log.events)} of the {needed} lines its checkpoint counts on"))
    if counted and needed and log.tallies[needed - 1] != counted:
        raise UserError(damaged(path, "it is not the record that its checkpoint was written after"))
    return log


def damaged(path: Path, why: str) -> str:
    return (
        f"{path} is damaged: {why}. Restore it from a copy, or delete the folder {path.parent} and give the command "
        "that made it again."
    )


def is_event(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and isinstance(found.get("event"), str)
        and isinstance(found.get("format", 1), int)
        and isinstance(found.get("order", 0), int | float)
    )


def _take(log: EventLog, line: bytes, place: Path) -> str:
    """Add a line to what was read; what is wrong with it, if anything."""
    try:
        event = parse_json(line)
    except (ValueError, RecursionError):
        return "is not a record"
    if not is_event(event):
        return "is not a record"
    if not log.events and event["event"] != "start":
        return "is not the start of a run"
    if not log.events:
        refuse_later(place, event)
    stated, before = CHECK.search(line), log.tallies[-1] if log.tallies else Tally()
    body = line if stated is None else line[: stated.start()] + b"}"
    tally = before.after(body)
    if (stated is not None) != (format_of(log.events[0] if log.events else event) >= CHECKED_FROM):
        return "does not fit the format of the record"
    if stated is not None and stated[1].decode() != tally.check:
        return "does not match its check: it was changed, or lines before it are missing"
    event.pop("check", None)
    log.events.append(event)
    log.bodies.append(body)
    log.tallies.append(tally)
    return ""


def _body(event: Event) -> bytes:
    """Refuses what `parse_json` would: a record that nobody can read is no record."""
    body = json.dumps(event, separators=(",", ":")).encode()
    if HALF.search(body):
        for text in _texts(event):
            if not is_whole_text(text):
                raise UserError(
                    f"No record can hold {in_short(text)}, in which a character is only half there; if it is a file or "
                    "a folder, whose name is not UTF-8 text, rename it."
                )
    return body


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def _line(body: bytes, tally: Tally) -> bytes:
    return body[:-1] + f',"check":"{tally.check}"}}\n'.encode()


class Writer:
    """Appends events to one run's file. They are on disk after `sync`, which must come before a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS
        self._tally, self._checked = Tally(), True
        self._synced = 0  # lines that are on disk
        files.make_folder(folder)

    @property
    def tally(self) -> Tally:
        """For the checkpoint that counts on these lines."""
        return self._tally

    def begin(self, event: str, **fields: Any) -> None:
        """The first line of a new file; what a run killed before its first checkpoint left goes."""
        files.remove_temporary(self.path.parent)
        for old in (self.path.with_name(FINISHED), self.path):
            files.remove(old)
        self._tally, self._checked, self._synced = Tally(), True, 0
        self.write(event, **fields)
        self.sync()

    def write(self, event: str, **fields: Any) -> None:
        body = _body({"event": event, **fields})
        after = self._tally.after(body)
        line = _line(body, after) if self._checked else body + b"\n"
        files.append(self.path, line.decode())
        self._tally = after

    def sync(self) -> None:
        """Make all lines durable."""
        if self._synced < self._tally.lines:
            files.sync_file(self.path)
            if self._synced == 0:
                files.sync_folder(self.path.parent)
            self._synced = self._tally.lines

    def replace(self, events: Iterable[Event]) -> None:
        """Write the whole record anew, at once."""
        kept = list(events)
        files.remove(self.path.with_name(FINISHED))
        files.write_atomically(self.path, chained(kept))
        self._tally, self._checked = Tally(), True
        for event in kept:
            self._tally = self._tally.after(_body(event))
        self._synced = self._tally.lines

    def finish(self) -> None:
        """After the last event: make it durable, and leave a sign that there was one."""
        self.sync()
        mark_finished(self.path.parent, self._tally)

    def rewind(
        self, counted: Tally | None, rounds_done: int | None, demand: Callable[[list[Event]], None] | None = None
    ) -> list[Event]:
        """Go back to a checkpoint: what was recorded after it, and a torn last line, is dropped, and will come again.

        counted: the lines that the checkpoint counts on; None for one of an earlier version. rounds_done: events of
        rounds up to it are kept; None where the checkpoint is of a phase in front of the last. demand: raises where
        something is missing in what is kept, before anything is written. The events that are kept.
        """
        files.remove_temporary(self.path.parent)
        if not self.path.exists():
            raise UserError(missing(self.path))
        log = read_log(self.path, counted)
        if not log.events:
            raise UserError(damaged(self.path, CUT_SHORT))
        first = 1 if counted is None else counted.lines
        kept = [n for n, event in enumerate(log.events) if n < first or _stays(event, rounds_done, counted is None)]
        events = [log.events[n] for n in kept]
        if demand is not None:
            demand(events)
        self._checked, self._tally = log.checked, Tally()
        lines = []
        for n in kept:
            self._tally = self._tally.after(log.bodies[n])
            lines.append(_line(log.bodies[n], self._tally) if log.checked else log.bodies[n] + b"\n")
        files.remove(self.path.with_name(FINISHED))
        files.write_atomically(self.path, b"".join(lines))
        self._synced = self._tally.lines
        return events


def missing(path: Path) -> str:
    return (
        f"{path} is missing, and other files of its run are there. Restore it from a copy, or delete the folder "
        f"{path.parent} and give the command that made it again."
    )


def _stays(event: Event, rounds_done: int | None, older: bool) -> bool:
    """Whether an event that no checkpoint counts on is of a round that the checkpoint has."""
    if rounds_done is None or event["event"] in ("scores", "end"):
        return False
    return event.get("round", 0 if older else rounds_done + 1) <= rounds_done


def mark_finished(folder: Path, tally: Tally) -> None:
    files.write_atomically(folder / FINISHED, json.dumps(asdict(tally)).encode())
