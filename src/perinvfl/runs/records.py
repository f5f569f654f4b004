"""Records: one folder per run, one JSON line per event; the run's id is a hash of what was asked.

Does not import torch, so that tables are made at once.
"""

import hashlib
import json
import lzma
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from perinvfl.core.files import write_atomically, writing
from perinvfl.errors import UserError
from perinvfl.runs.facts import FORMAT, Facts, Purpose
from perinvfl.runs.old_records import facts_of_old

EVENTS = "events.jsonl"
CHECKPOINT = "checkpoint.pt"
PACKED = ".jsonl.xz"
Event = dict[str, Any]
Cases = dict[str, list[float | None]]  # test case -> score of each client; None for one without a sample of it


def run_id(asked: dict[str, Any]) -> str:
    """Sixteen hex digits that name a configuration."""
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Run:
    """What a finished or unfinished run left behind."""

    folder: Path
    events: list[Event]
    folds: tuple["Run", ...] = ()  # where it stands for several, each with another context held out

    @property
    def start(self) -> Event:
        return self.events[0]

    @cached_property
    def facts(self) -> Facts:
        return facts_of_old(self.start) if self.format == 1 else Facts.read(self.start)

    def with_facts(self, facts: Facts) -> "Run":
        start, *others = self.events
        return replace(self, events=[{**start, **facts.as_fields()}, *others])

    @property
    def format(self) -> int:
        return format_of(self.start)

    @property
    def method(self) -> str:
        return self.facts.method

    @property
    def setting(self) -> int | None:
        """Its place in a search, if it is one of its trials."""
        return self.facts.setting

    @property
    def seed(self) -> int:
        return self.facts.seed

    @property
    def fold(self) -> str:
        return self.facts.fold

    @property
    def chooses_only(self) -> bool:
        """Whether it lacks one of numbered clients, for a rule that chooses settings; tables and figures pass it over.

        A hospital that is left out has a name, and is what such a run is about.
        """
        client = self.asked["data"].get("leave_out", -1)
        return isinstance(client, int) and client >= 0

    @property
    def purpose(self) -> Purpose | None:
        return self.facts.purpose

    @property
    def id(self) -> str:
        return self.start["id"]

    @property
    def asked(self) -> dict[str, Any]:
        """The full configuration, by part: data, contexts, model, training, algorithm, seed."""
        return self.start["asked"]

    @property
    def label(self) -> str:
        """How the run was called; what that says is in `method`, `setting` and `fold`."""
        return self.asked["algorithm"]["label"]

    @property
    def benchmark(self) -> str:
        return self.asked["data"]["benchmark"]

    @property
    def experiment(self) -> str:
        return self.start["experiment"]

    @property
    def spectrum(self) -> list[str]:
        """The shifted test contexts."""
        return self.start["spectrum"]

    @property
    def task(self) -> str:
        return self.start["task"]

    @property
    def clients(self) -> int:
        return self.start["clients"]

    @property
    def notes(self) -> dict[str, Any]:
        """What the data say of themselves, such as the scores of a constant predictor."""
        return self.start["notes"]

    @property
    def evaluations(self) -> list[Event]:
        return [event for event in self.events if event["event"] == "evaluation"]

    @property
    def finished(self) -> bool:
        return any(event["event"] in ("end", "broken") for event in self.events)

    @property
    def found(self) -> dict[str, Any]:
        """What the phases in front of the last one found; records of the first format have it among their notes."""
        prepared = next((event["found"] for event in self.events if event["event"] == "prepared"), None)
        return self.start["notes"] if prepared is None else prepared

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


def lead_scores(event: Event) -> Cases:
    """The scores of the personal models in an evaluation where there are any, else of the global one."""
    return event.get("personal") or event["global"]


def mean_known(scores: Iterable[float | None]) -> float:
    """The mean over the clients that have a score: one without a sample of a test context has none."""
    return statistics.fmean([score for score in scores if score is not None])  # a list: far faster


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

    def rewind(self, rounds_done: int | None) -> None:
        """Drop what was recorded after a checkpoint, and a torn last line: those rounds will be done again.

        None: the checkpoint is of a phase in front of the last, so that only the start is kept.
        """
        if not self.path.exists():
            raise UserError(f"{self.path} is missing beside its checkpoint; delete the folder to start this run again.")
        kept = read_events(self.path)[: 1 if rounds_done is None else None]
        kept = [event for event in kept if event.get("round", 0) <= (rounds_done or 0) and event["event"] != "end"]
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
    return _run(folder, events) if events and events[0]["event"] == "start" else None


def format_of(start: Event) -> int:
    """The format of a record by its first event; the oldest ones do not name it."""
    return start.get("format", 1)


def _run(place: Path, events: list[Event]) -> Run:
    found = format_of(events[0])
    if found > FORMAT:
        raise UserError(
            f"{place} holds a record of format {found}, and this version of perinvfl reads formats up to {FORMAT}; "
            "read it with the version that wrote it, or a later one."
        )
    return Run(place, events)


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
    """Many runs in one compressed file, one run per line: for results that are published."""
    lines = "".join(json.dumps({"events": run.events}, separators=(",", ":")) + "\n" for run in runs)
    write_atomically(path, lzma.compress(lines.encode(), preset=9))


def read_packed(path: Path) -> list[Run]:
    try:
        lines = lzma.decompress(path.read_bytes()).decode().splitlines()
        packed = [json.loads(line)["events"] for line in lines]
    except (lzma.LZMAError, ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged or holds no packed runs ({error}).") from None
    return [_run(path, events) for events in packed]
