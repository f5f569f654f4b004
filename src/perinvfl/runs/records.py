"""Records: one folder a run, one JSON line an event; the run's id is a hash of what was asked."""

import hashlib
import json
import lzma
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perinvfl.core.files import write_atomically, writing
from perinvfl.errors import UserError

EVENTS = "events.jsonl"
CHECKPOINT = "checkpoint.pt"
PACKED = ".jsonl.xz"
Event = dict[str, Any]


def run_id(asked: dict[str, Any]) -> str:
    """Sixteen hex digits that name a configuration."""
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Run:
    """What a finished or unfinished run left behind."""

    folder: Path
    events: list[Event]

    @property
    def start(self) -> Event:
        return self.events[0]

    @property
    def evaluations(self) -> list[Event]:
        return [event for event in self.events if event["event"] == "evaluation"]

    @property
    def finished(self) -> bool:
        return any(event["event"] in ("end", "broken") for event in self.events)

    @property
    def broken(self) -> Event | None:
        return next((event for event in self.events if event["event"] == "broken"), None)


def evaluations_at(runs: Sequence[Run], rounds: Sequence[int]) -> list[Event]:
    """The evaluation of each run at its round; at the last one where no rounds are given."""
    if not rounds:
        return [run.evaluations[-1] for run in runs]
    return [
        next(event for event in run.evaluations if event["round"] == round)
        for run, round in zip(runs, rounds, strict=True)
    ]


def mean_known(scores: Iterable[float | None]) -> float:
    """The mean over the clients that have a score: one without a sample of a test context has none."""
    return statistics.fmean(score for score in scores if score is not None)


class Writer:
    """Appends events to one run's file, each line flushed as it is written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS
        with writing(self.path):
            folder.mkdir(parents=True, exist_ok=True)

    def write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}, separators=(",", ":"))
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def rewind(self, rounds_done: int) -> None:
        """Drop what was recorded after a checkpoint, and a torn last line: those rounds will be done again."""
        if not self.path.exists():
            raise UserError(f"{self.path} is missing beside its checkpoint; delete the folder to start this run again.")
        kept = [event for event in read_events(self.path) if event.get("round", 0) <= rounds_done]
        kept = [event for event in kept if event["event"] != "end"]
        lines = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in kept)
        write_atomically(self.path, lines.encode())


def read_events(path: Path) -> list[Event]:
    """All whole lines of an events file."""
    events = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except UnicodeDecodeError:
        raise UserError(f"{path} is damaged: it is not text; restore the file or delete its folder.") from None
    for number, line in enumerate(lines, start=1):
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            if number == len(lines) and not line.endswith("\n"):
                break  # a line that was being written when the run was killed
            raise UserError(f"{path}, line {number}, is not a record; restore the file or delete its folder.") from None
    return events


def read_run(folder: Path) -> Run | None:
    """The run in a folder, if one was ever started there."""
    path = folder / EVENTS
    if not path.exists():
        return None
    events = read_events(path)
    return Run(folder, events) if events and events[0]["event"] == "start" else None


def is_run(place: Path) -> bool:
    return (place / EVENTS).exists()


def find_runs(place: Path) -> list[Run]:
    """All runs below a folder or in a packed file, in the order they were asked for."""
    if place.is_file() and place.name.endswith(PACKED):
        return read_packed(place)
    if not place.is_dir():
        raise UserError(f"{place} is not a folder; give the folder that holds the runs, or a {PACKED} file.")
    found: Iterable[Run | None] = (read_run(path.parent) for path in sorted(place.rglob(EVENTS)))
    runs = [run for run in found if run is not None]
    return sorted(runs, key=lambda run: run.start.get("order", 0))


def pack(runs: list[Run], path: Path) -> None:
    """Many runs in one compressed file, one run a line: for results that are published."""
    lines = "".join(json.dumps({"events": run.events}, separators=(",", ":")) + "\n" for run in runs)
    write_atomically(path, lzma.compress(lines.encode(), preset=9))


def read_packed(path: Path) -> list[Run]:
    try:
        lines = lzma.decompress(path.read_bytes()).decode().splitlines()
        return [Run(path, json.loads(line)["events"]) for line in lines]
    except (lzma.LZMAError, ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged or holds no packed runs ({error}).") from None
