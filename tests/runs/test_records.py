"""Records tell facts as fields; those of format 1 still read, and those of a later format are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from perinvfl.errors import UserError
from perinvfl.runs.event_log import Writer
from perinvfl.runs.facts import FORMAT, Effort, Facts, Purpose, run_id
from perinvfl.runs.records import EVENTS, Event, Run, find_runs, pack, read_packed, read_run

CHOSEN = Purpose("chosen", Effort(trials=3, seeds=(7, 8)), ("source", "oracle"))


def start(label: str, **data: Any) -> Event:
    """The first event of a record of format 1."""
    asked = {"data": {"benchmark": "random", **data}, "algorithm": {"name": "irm", "label": label}, "seed": 5}
    return {"event": "start", "id": "abc", "asked": asked}


OLD = [
    (start("IRM"), Facts("IRM", None, 5, "", None)),
    (start("IRM #7"), Facts("IRM", 7, 5, "", None)),
    (start("IRM #7", leave_out=-1), Facts("IRM", 7, 5, "", None)),
    (start("IRM #7 without 2", leave_out=2), Facts("IRM", 7, 5, "client 2", None)),
    (start("IRM", leave_out=2), Facts("IRM", None, 5, "client 2", None)),
    (start("IRM #0", leave_one_context_out=True, test_contexts=[2021.0]), Facts("IRM", 0, 5, "2021", None)),
    (start("IRM", leave_one_context_out=False, test_contexts=["North"]), Facts("IRM", None, 5, "", None)),
    # A user's own words are not the number of a setting, nor a fold.
    (start("Take #1 of mine"), Facts("Take #1 of mine", None, 5, "", None)),
    (start("Take #1 #7"), Facts("Take #1", 7, 5, "", None)),
    (start("IRM without 2"), Facts("IRM without 2", None, 5, "", None)),
    (start("IRM without 2 #3"), Facts("IRM without 2", 3, 5, "", None)),
]


@pytest.mark.parametrize(("event", "facts"), OLD)
def test_an_old_record_and_a_new_one_tell_the_same(event: Event, facts: Facts) -> None:
    old, new = Run(Path(), [event]), Run(Path(), [event | facts.as_fields()])
    assert (old.format, new.format) == (1, FORMAT)
    assert old.facts == new.facts == facts
    assert (old.method, old.setting, old.seed, old.fold) == (new.method, new.setting, new.seed, new.fold)
    assert old.label == new.label == event["asked"]["algorithm"]["label"]


@pytest.mark.parametrize("label", ["Take #1", "IRM #7 without 2", "Mine without 2", "#3"])
def test_a_label_of_a_new_record_is_not_read_for_facts(label: str) -> None:
    facts = Facts(label, None, 5, "", None)
    run = Run(Path(), [start(label, leave_out=-1) | facts.as_fields()])
    assert run.facts == facts and run.method == label and run.setting is None


def whole(event: Event) -> Event:
    """With all that a record says at its start."""
    asked = {**event["asked"], "model": {}, "training": {"rounds": 3}}
    of_data = {"spectrum": [], "task": "binary", "clients": 1, "notes": {}}
    about = {"experiment": "tiny", "order": 0, "environment": {"perinvfl": "0.1.0"}}
    return {**event, "id": run_id(asked), "asked": asked, **of_data, **about}


def test_facts_survive_a_file(tmp_path: Path) -> None:
    facts = Facts("IRM", 7, 5, "client 2", CHOSEN)
    fields = whole(start("IRM #7 without 2", leave_out=2)) | facts.as_fields()
    fields.pop("event")
    Writer(tmp_path / "run").write("start", **fields)
    run = read_run(tmp_path / "run")
    assert run is not None and run.facts == facts and run.purpose == CHOSEN
    pack([run], tmp_path / "packed.jsonl.xz")
    (packed,) = read_packed(tmp_path / "packed.jsonl.xz")
    assert packed.facts == facts and packed.events == run.events


def test_facts_can_be_replaced_and_nothing_else_changes() -> None:
    run = Run(Path(), [start("IRM #7"), {"event": "end", "round": 3}])
    changed = run.with_facts(Facts("IRM", None, 5, "", CHOSEN))
    assert (changed.setting, changed.purpose, changed.asked) == (None, CHOSEN, run.asked)
    assert changed.events[1:] == run.events[1:] and run.setting == 7


def test_a_record_of_a_later_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    event = start("IRM") | {"format": FORMAT + 1}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / EVENTS).write_text(json.dumps(event) + "\n")
    pack([Run(tmp_path, [event])], tmp_path / "packed.jsonl.xz")
    for read in (
        lambda: read_run(tmp_path / "run"),
        lambda: find_runs(tmp_path),
        lambda: find_runs(tmp_path / "packed.jsonl.xz"),
    ):
        with pytest.raises(UserError) as refusal:
            read()
        words = str(refusal.value)
        assert f"holds a record of format {FORMAT + 1}" in words and "\n" not in words and words.count(". ") == 0


def test_a_purpose_that_is_not_known_is_one_sentence() -> None:
    fields = Facts("IRM", 7, 5, "", CHOSEN).as_fields()
    fields["purpose"]["stage"] = "tasting"
    with pytest.raises(UserError, match=r'purpose\.stage = "tasting": must be one of'):
        _ = Run(Path(), [start("IRM #7") | fields]).facts
