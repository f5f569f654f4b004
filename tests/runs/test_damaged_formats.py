"""Records of every format with a little damage: each command answers with a result or with one sentence and code 2.

Lines of formats 1 and 2 have no checks; what is noticed of them is what `runs/event_forms.py` says a record holds.
"""

import json
import lzma
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perinvfl.cli import call
from perinvfl.core import checkpoint
from perinvfl.errors import UserError
from perinvfl.runs.event_forms import ADDED_BY_2, fault_in_fields, fault_in_results
from perinvfl.runs.event_log import chained
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import (
    CHECKPOINT,
    EVENTS,
    FINISHED,
    PACKED,
    Event,
    find_runs,
    pack,
    read_events,
    read_packed,
    read_run,
)
from perinvfl.runs.train import train
from tests.commands import ROOT, tiny_file
from tests.runs.damage import Damage, damages

SECOND = '\n[[algorithm]]\nname = "fedavg"\nlearning_rate = 0.05\n'
FLIPS, DIGITS = 180, 60
OPENED = 4  # damaged records that were accepted, and that every command opens


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tiny_file(tmp_path_factory.mktemp("file"), 6, "evaluate_every = 2", SECOND)
    folder = tmp_path_factory.mktemp("finished") / "tiny"
    train(read_experiment(file), folder, Progress())
    return folder


def lines_of(events: list[Event], format: int) -> bytes:
    start = {name: value for name, value in events[0].items() if format > 1 or name not in (*ADDED_BY_2, "format")}
    told = [start | ({"format": format} if format > 1 else {}), *events[1:]]
    if format >= 3:
        return chained(told)
    return b"".join(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in told)


def in_format(finished: Path, folder: Path, format: int) -> Path:
    """The same runs as an earlier version would have left them; the record that is to be damaged."""
    shutil.copytree(finished, folder)
    for record in folder.rglob(EVENTS):
        content = lines_of(read_events(record), format)
        record.write_bytes(content)
        if format < 3:
            (record.parent / FINISHED).unlink()
            saved = record.with_name(CHECKPOINT)
            checkpoint.save(saved, checkpoint.load(saved))  # one that counts on nothing
    return next(path for path in sorted(folder.rglob(EVENTS)) if "perinvfl" in path.parent.name)


def changed(content: bytes, seed: int) -> Iterator[Damage]:
    """Also values that are of the wrong kind, which single bits seldom make of others."""
    yield from damages(content, seed, cuts=20, flips=FLIPS)
    rng = random.Random(seed)
    places = [place for place, byte in enumerate(content) if byte in b"0123456789" and content[place - 1] in b":[, "]
    for at in rng.sample(places, min(DIGITS, len(places))):
        end = next(place for place in range(at, len(content)) if content[place] in b",]} ")
        for value in (b"null", b'"x"', b"[]", b"{}", b"true", b"-1", b"1e999", b"NaN", b"9" * 400):
            if rng.random() < 0.2:
                yield f"{value.decode()[:9]} in place of byte {at}", content[:at] + value + content[end:]


def answered(arguments: list[str], capsys: pytest.CaptureFixture[str], what: str) -> int:
    """Any other exception than a user's mistake would end the test."""
    capsys.readouterr()
    code = call(arguments)
    printed = capsys.readouterr()
    assert code in (0, 2), (what, arguments, code)
    said = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert len(said) == (code == 2) and "Traceback" not in printed.err, (what, arguments, printed.err)
    return code


def every_command(place: Path, record: Path, tmp_path: Path) -> Iterator[list[str]]:
    yield ["table", str(place), "--score", "auroc"]
    yield ["report", str(place), "-o", str(tmp_path / "r.html"), "--diagnose"]
    yield ["plot", str(place), "--kind", "clients", "--out", str(tmp_path / "figures")]
    yield ["export", str(record.parent), "-o", str(tmp_path / "model.safetensors"), "--client", "1"]
    yield ["diagnose", str(record.parent)]


@pytest.mark.slow
@pytest.mark.parametrize("format", [1, 2, 3])
def test_a_damaged_record_of_any_format_gets_a_sentence(
    format: int, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tiny"
    record = in_format(finished, folder, format)
    content = record.read_bytes()
    for arguments in (["table", str(folder)], *every_command(folder, record, tmp_path)):
        assert answered(arguments, capsys, "whole") == 0, arguments
    tried, accepted = 0, 0
    for what, left in changed(content, seed=format):
        record.unlink(missing_ok=True)
        if left is not None:
            record.write_bytes(left)
        tried += 1
        code = answered(["table", str(folder)], capsys, what)
        assert answered(["verify", str(folder)], capsys, what) == 2 or code == 0, what  # it reads more than a table
        if code == 0 and read_run(record.parent) is not None:
            accepted += 1
            if accepted % 16 == 1 and accepted <= 16 * OPENED:
                for arguments in every_command(folder, record, tmp_path):
                    answered(arguments, capsys, what)
    assert tried >= 300
    # A digit that is another digit, mostly; how many depends on the times in the record.
    assert accepted <= (5 if format >= 3 else tried // 2), (tried, accepted)


@pytest.mark.slow
def test_damage_inside_a_packed_record_gets_a_sentence(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the right checksum: what was packed was damaged before."""
    runs, path = find_runs(finished), tmp_path / f"runs{PACKED}"
    pack(runs, path)
    lines, accepted = lzma.decompress(path.read_bytes()), 0
    for number, (what, left) in enumerate(changed(lines, seed=7)):
        if not left:
            continue  # a file that holds no run at all
        path.write_bytes(lzma.compress(left, preset=0))
        code = answered(["table", str(path)], capsys, what)
        answered(["verify", str(path)], capsys, what)
        accepted += code == 0
        if code == 0 and number % 40 == 0:
            answered(["report", str(path), "-o", str(tmp_path / "r.html")], capsys, what)
    assert 0 < accepted < number // 2


@pytest.mark.parametrize("name", ["waterbird_balanced/chosen", "heart_disease/within_hospitals", "beyond/parts/search"])
def test_published_records_of_earlier_versions_are_read_in_full(name: str) -> None:
    """Every one of them is what `event_forms` says a record is; see also tests/reproduce."""
    assert read_packed(ROOT / "results" / f"{name}{PACKED}")


def forged(record: Path, change: Callable[[list[Event]], None]) -> None:
    events = read_events(record)
    change(events)
    record.write_bytes(chained(events))


FORGERIES: dict[str, Callable[[list[Event]], None]] = {
    "no test context": lambda events: events[0].update(spectrum=[]),
    "lacks a test context": lambda events: events[1]["personal"].popitem(),
    "lacks a test context or a client": lambda events: next(iter(events[1]["personal"].values())).pop(),
    "does not belong to its id": lambda events: events[0]["asked"]["training"].update(rounds=7),
    'no "experiment"': lambda events: events[0].update(experiment="../../elsewhere"),
    'no "risks"': lambda events: events[1].update(risks="all"),
    "comes after that of round": lambda events: events[2].update(round=1),
    "a second start": lambda events: events.append(events[0]),
    "not all it says of them": lambda events: events[0].update(clients=2),
    'no "method"': lambda events: events[0].pop("method"),
}


@pytest.mark.parametrize("says", FORGERIES)
def test_what_does_not_fit_together_is_named(says: str, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "tiny", ignore=shutil.ignore_patterns("checkpoint.pt"))
    record = next(path for path in sorted((tmp_path / "tiny").rglob(EVENTS)) if "perinvfl" in path.parent.name)
    forged(record, FORGERIES[says])
    with pytest.raises(UserError) as error:
        find_runs(tmp_path / "tiny")
    assert says in str(error.value) and str(record) in str(error.value) and "delete the folder" in str(error.value)


def published(name: str) -> list[Event]:
    return read_packed(ROOT / "results" / f"{name}{PACKED}")[0].events


@pytest.mark.parametrize("value", [[float("nan")], {"deep": float("inf")}])
def test_settings_hold_no_number_that_a_report_cannot_write(value: Any) -> None:
    events = published("recommended/waterbird")
    assert fault_in_fields(events) == ""
    events[0]["asked"]["training"]["batch_size"] = value
    assert fault_in_fields(events) == 'line 1 (start) has no "asked" that a run would write'


def test_settings_that_are_nested_deeply_are_no_settings() -> None:
    events, value = published("recommended/waterbird"), list[Any]()
    for _ in range(400):
        value = [value]
    events[0]["environment"]["cpu"] = value
    assert 'no "environment"' in fault_in_fields(events)


@pytest.mark.parametrize("counts", [[5], [5, 1, 3], [0, 0, 0, 0], [-1, 2, 3, 4], []])
def test_groups_are_two_for_each_class(counts: list[int]) -> None:
    events = published("recommended/waterbird")
    next(iter(events[0]["notes"]["groups"]["counts"].values()))[0] = counts
    assert "groups that are not two for each class" in fault_in_results(events)


def test_groups_of_a_test_context_that_there_is_not_are_noticed() -> None:
    events = published("recommended/waterbird")
    first = next(event for event in events if event["event"] == "evaluation")
    kind = next(name for name in first if name.endswith(" groups"))
    first[kind]["another"] = next(iter(first[kind].values()))
    assert "groups that are not those of its tests" in fault_in_results(events)


def test_a_client_that_was_away_was_away_from_every_test_context() -> None:
    events = published("recommended/waterbird")
    groups = events[-2]["personal groups"] if "personal groups" in events[-2] else events[1]["personal groups"]
    assert fault_in_results(events) == ""
    next(iter(groups.values()))[0] = []
    assert "groups that are not those of its tests" in fault_in_results(events)


def test_a_long_name_of_a_field_is_told_in_short() -> None:
    events = published("beyond/parts/search")
    assert events[0].get("format", 1) < 3
    events[1]["x" * 100_000] = 1
    assert len(fault_in_fields(events)) < 400
