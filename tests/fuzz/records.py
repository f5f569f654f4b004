"""Records of every format, in folders and packed, of runs that were really made: bits flipped, values exchanged, and
read as the commands read them.

Damage that its checks would notice at once is only the beginning: the checks of a line of format 3, the run's id and
the container's checksum are made anew for what was changed, so that every reader behind them is reached.
"""

import contextlib
import copy
import io
import json
import lzma
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from perinvfl.cli import call
from perinvfl.errors import UserError
from perinvfl.flower.settings import DeploymentSettings
from perinvfl.flower.transport import Answer
from perinvfl.plots.charts import make_charts
from perinvfl.report import gather, render_page
from perinvfl.runs.event_log import chained
from perinvfl.runs.facts import run_id
from perinvfl.runs.records import PACKED, find_runs, read_packed, read_run
from tests.commands import ROOT
from tests.flower.deployed import deploy, trial_of
from tests.flower.inprocess import InProcess
from tests.fuzz import odd
from tests.fuzz.core import Fuzzer

Event = dict[str, Any]
PUBLISHED = (  # formats 1, 2 and 3; groups, scores, what was prepared, own names, a search, a regression
    "waterbird_balanced/chosen", "rc_mnist/longer", "heart_disease/within_hospitals", "beyond/parts/chosen",
    "recommended/waterbird", "worlds/reported",
)  # fmt: skip
RUNS, EVALUATIONS = 3, 2  # of each that are kept: small inputs are fed sooner
SCORES = ("", "accuracy", "balanced", "worst-group", "auroc", "sensitivity", "r2")


def bases(folder: Path) -> list[list[list[Event]]]:
    """Groups of records that one folder may hold."""
    groups = []
    for name in PUBLISHED:
        runs = read_packed(ROOT / "results" / f"{name}{PACKED}")
        alike = [run for run in runs if run.benchmark == runs[0].benchmark and run.spectrum == runs[0].spectrum]
        groups.append([_shortened(run.events) for run in alike[:RUNS]])
    return [*groups, [_deployed(folder)]]


def _shortened(events: list[Event]) -> list[Event]:
    places = [place for place, event in enumerate(events) if event["event"] == "evaluation"]
    dropped = set(places[:-EVALUATIONS])
    return [event for place, event in enumerate(events) if place not in dropped]


def _deployed(folder: Path) -> list[Event]:
    """Of a deployment that one site left before its end."""
    trial = trial_of("perinvfl", rounds=4)

    def leave(kind: str, client: int, round: int, answer: Answer) -> Answer | None:
        return None if client == 2 and kind == "evaluate" else answer

    transport = InProcess(folder, 4, leave)
    settings = DeploymentSettings(patience=1.0, round_timeout=1.0, last_patience=0.1, poll=0.01)
    run = read_run(deploy(trial, folder, settings, transport).folder)
    assert run is not None and run.finished
    return run.events


class Records:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self.bases = bases(self.folder / "deployed")

    def make(self, rng: random.Random) -> tuple[str, list[bytes], str]:
        """How it is kept, its records, and who reads them."""
        group = copy.deepcopy(rng.choice(self.bases))
        damaged = rng.randrange(len(group))
        packed = rng.random() < 0.3
        records = [self._record(events, rng, packed, place == damaged) for place, events in enumerate(group)]
        return "packed" if packed else "folders", records, rng.choice((*SCORES, "report", "plot", "verify", "search"))

    def _record(self, events: list[Event], rng: random.Random, packed: bool, damaged: bool) -> bytes:
        if damaged and rng.random() < 0.6:
            changed = odd.mutate(events, rng)
            events = changed if isinstance(changed, list) and changed else [{"event": "start"}]
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                if rng.random() < 0.5:
                    events[0]["id"] = run_id(events[0]["asked"])
            damaged = False
        if packed:
            content = odd.as_json({"events": events}) + b"\n"
            return _flipped(content, rng) if damaged else content
        if events[0].get("format") == 3 if isinstance(events[0], dict) else False:
            return _chained(events, rng, damaged)
        lines = b"".join(odd.as_json(event) + b"\n" for event in events)
        return _flipped(lines, rng) if damaged else lines

    def feed(self, given: tuple[str, list[bytes], str]) -> None:
        kind, records, reader = given
        place = self.folder / "runs"
        try:
            if kind == "packed":
                place = self.folder / f"runs{PACKED}"
                place.write_bytes(lzma.compress(b"".join(records), preset=0))
            else:
                for number, content in enumerate(records):
                    (place / str(number)).mkdir(parents=True)
                    (place / str(number) / "events.jsonl").write_bytes(content)
            self._read(place, reader)
        finally:
            shutil.rmtree(place, ignore_errors=True)
            place.unlink(missing_ok=True)

    def _read(self, place: Path, reader: str) -> None:
        if reader == "report":
            render_page(gather([place]))
        elif reader == "plot":
            make_charts(find_runs(place), "all")
        elif reader == "verify":
            _called("verify", str(place))
        elif reader == "search":
            _called("table", str(place), "--rule", "oracle", "--format", "json")
        else:
            _called("table", str(place), *(["--score", reader] if reader else []))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _flipped(content: bytes, rng: random.Random) -> bytes:
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def _chained(events: list[Event], rng: random.Random, damaged: bool) -> bytes:
    """Lines of format 3, with the checks that belong to what was changed in one of them."""
    lines = [odd.as_json(event) for event in events]
    if damaged:
        place = rng.randrange(len(lines))
        changed = _flipped(lines[place], rng)
        try:
            event = json.loads(changed)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict):
            events = [*events[:place], event, *events[place + 1 :]]
    try:
        return chained(events)
    except (ValueError, TypeError, RecursionError, UserError):
        return b"\n".join(lines)


def _called(*arguments: str) -> None:
    """A command: its exit code is 0, or 2 with one sentence."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = call(list(arguments))
    if code == 2:
        raise UserError(err.getvalue())
    assert code == 0, (code, err.getvalue())


def fuzzer() -> Fuzzer:
    made = Records()
    return Fuzzer("records", made.make, made.feed)
