"""Records: one folder per run, one JSON line per event; the run's id is a hash of what was asked.

Does not import torch, so that tables are made at once.
"""

import json
import lzma
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from perinvfl.core.files import read_file, write_atomically
from perinvfl.core.sealed import is_sealed, read_about
from perinvfl.core.unpacking import gunzip, parse_json, unxz
from perinvfl.errors import UserError
from perinvfl.runs.event_forms import fault_in_fields, fault_in_results
from perinvfl.runs.event_log import (
    CUT_SHORT,
    EVENTS,
    FINISHED,
    Event,
    Tally,
    Writer,
    damaged,
    format_of,
    is_event,
    missing,
    read_log,
    refuse_later,
)
from perinvfl.runs.facts import Facts, Purpose
from perinvfl.runs.old_records import facts_of_old, with_all_sites

TOGETHER = ".together"  # below the folder of all runs: checkpoints of trials that run as one program
MOST_LOOKED_AT = 2**28  # bytes of unpacked predictions, to see whose they are
CHECKPOINT = "checkpoint.pt"
CHECKPOINTS = (CHECKPOINT, "server.pt")  # of a run on one machine, and of the server of a deployment
PREDICTIONS = "predictions.json.gz"
PACKED = ".jsonl.xz"
ARRIVING = ".arriving"  # runs made on other machines, until they are there whole
Cases = dict[str, list[float | None]]  # test case -> score of each client; None for one without a sample of it


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
    def absent(self) -> list[str]:
        """Sites that are missing from the last evaluation of a run across machines."""
        return list(self.evaluations[-1].get("absent", ())) if self.evaluations else []

    @property
    def found(self) -> dict[str, Any]:
        """What the phases in front of the last one found; records of the first format have it among their notes."""
        prepared = next((event["found"] for event in self.events if event["event"] == "prepared"), None)
        return self.start["notes"] if prepared is None else prepared

    @property
    def scores(self) -> dict[str, Any] | None:
        """By kind of model, as `perinvfl.scoring.run_scores` has them, where the record itself holds them."""
        return next((event["models"] for event in self.events if event["event"] == "scores"), None)

    @property
    def pruned(self) -> Event | None:
        """Where a search has given it up; such a run is not finished, and has no models."""
        return next((event for event in self.events if event["event"] == "pruned"), None)

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


def unscored(run: Run) -> list[str]:
    """The shifted test contexts of which no client has a score in the last evaluation: who holds them was away then, or
    the errors there are not finite."""
    scores = lead_scores(run.evaluations[-1])
    return [case for case in run.spectrum if not any_known(scores[case])]


def any_known(scores: Iterable[float | None]) -> bool:
    return any(score is not None for score in scores)


def mean_known(scores: Iterable[float | None]) -> float:
    """The mean over the clients that have a score: one without a sample of a test context has none."""
    return statistics.fmean([score for score in scores if score is not None])  # a list: far faster


def read_events(path: Path) -> list[Event]:
    """All whole lines of an events file."""
    return read_log(path).events


def tally_in(checkpoint: Path, folder: Path) -> Tally | None:
    """The lines of a run's record that a checkpoint counts on; None in one of an earlier version, or that says nothing
    that can be meant."""
    tallies = (read_about(checkpoint) or {}).get("records")
    if not isinstance(tallies, dict):
        return None
    renamed = len(tallies) == 1 and checkpoint.parent == folder
    found = next(iter(tallies.values())) if renamed else tallies.get(folder.name)
    lines, check = (found.get("lines"), found.get("check")) if isinstance(found, dict) else (None, None)
    return Tally(lines, check) if type(lines) is int and isinstance(check, str) else None


def records_about(writers: Iterable[Writer]) -> dict[str, Any]:
    """For a checkpoint: make the lines of these records durable, and say how far they go."""
    tallies = {}
    for writer in writers:
        writer.sync()
        tallies[writer.path.parent.name] = asdict(writer.tally)
    return {"records": tallies}


def demand_results(path: Path, due: Sequence[int], broken: bool, kept: list[Event]) -> None:
    """A run that goes on has the evaluations that were due so far on record, or why there are none."""
    there = {event.get("round") for event in kept if event["event"] == "evaluation"}
    lacking = [round for round in due if round not in there]
    if broken and not any(event["event"] == "broken" for event in kept):
        raise UserError(damaged(path, "it does not say that the run diverged, and its checkpoint does"))
    if lacking and not broken:
        raise UserError(damaged(path, f"the evaluation of round {lacking[0]} is missing"))


def _checkpoints_of(folder: Path) -> Iterator[Path]:
    """Its own, and those of programs of several trials, of which it may be one."""
    yield from (folder / name for name in CHECKPOINTS)
    yield from sorted((folder.parent / TOGETHER).glob("*.pt"))


def read_run(folder: Path) -> Run | None:
    """The run in a folder, if one was ever started there; a record of which something is lost is an error."""
    path, ended = folder / EVENTS, (folder / FINISHED).exists()
    # Before the events are read: a run that is going on writes them in the other order.
    counted = next((tally for place in _checkpoints_of(folder) if (tally := tally_in(place, folder))), None)
    if not path.exists():
        if _left_by_a_run(folder):
            raise UserError(missing(path))
        return None
    log = read_log(path, counted)
    if not log.events and _left_by_a_run(folder):
        raise UserError(damaged(path, CUT_SHORT))
    if ended and not log.ended:
        raise UserError(damaged(path, f"its end is missing, and {FINISHED} says that the run ended"))
    try:
        return _run(folder, log.events) if log.events else None
    except ValueError as fault:
        raise UserError(damaged(path, str(fault))) from None


def _left_by_a_run(folder: Path) -> bool:
    """Whether other files say that a run was here; names that other programs use too count if the content is ours."""
    if any(is_sealed(folder / name) for name in CHECKPOINTS):
        return True
    marks = (
        (FINISHED, {"lines", "check"}, bytes),
        (PREDICTIONS, {"labels", "of"}, partial(gunzip, most=MOST_LOOKED_AT)),
    )
    for name, keys, unpack in marks:
        with suppress(OSError, ValueError, AttributeError):
            if keys <= parse_json(unpack(read_file(folder / name))).keys():
                return True
    return False


def _run(place: Path, events: list[Event]) -> Run:
    """ValueError where the events are not those of a run."""
    refuse_later(place, events[0])
    fault = fault_in_fields(events)
    if not fault:
        sites = events[0].get("sites")
        events = events if sites is None else [with_all_sites(event, sites) for event in events]
        fault = fault_in_results(events)
    if fault:
        raise ValueError(fault)
    return Run(place, events)


def is_run(place: Path) -> bool:
    return (place / EVENTS).exists()


def run_folders(place: Path) -> list[Path]:
    """All folders below with a record, or with files that a run leaves beside one."""
    names, found = {EVENTS, FINISHED, PREDICTIONS, *CHECKPOINTS}, []
    for folder, below, files in os.walk(place):
        below[:] = [name for name in below if name != ARRIVING]
        found += [Path(folder)] if names.intersection(files) else []
    return sorted(found)


def find_runs(place: Path) -> list[Run]:
    """All runs below a folder or in a packed file, in the order they were asked for."""
    if place.is_file() and place.name.endswith(PACKED):
        return read_packed(place)
    if not place.is_dir():
        raise UserError(f"{place} is not a folder; give the folder that holds the runs, or a {PACKED} file.")
    runs = []
    for folder in run_folders(place):
        run = read_run(folder)
        if run is not None:
            runs.append(run)
        elif is_run(folder):
            raise UserError(
                f"{folder / EVENTS}: {CUT_SHORT}. The command that made it begins that run "
                f"again; to do without it, delete the folder {folder}."
            )
    return sorted(runs, key=lambda run: run.start.get("order", 0))


def pack(runs: list[Run], path: Path) -> None:
    """Many runs in one compressed file, one run per line: for results that are published."""
    lines = "".join(json.dumps({"events": run.events}, separators=(",", ":")) + "\n" for run in runs)
    write_atomically(path, lzma.compress(lines.encode(), preset=9))


def read_packed(path: Path) -> list[Run]:
    try:
        lines = unxz(path.read_bytes()).decode().splitlines()
        packed = [parse_json(line)["events"] for line in lines]
        if not all(events and all(map(is_event, events)) for events in packed):
            raise ValueError("a line is not the record of a run")
        return [_run(path, events) for events in packed]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged or holds no packed runs ({error}).") from None
