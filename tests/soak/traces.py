"""All that a run ended with, in a form that can be compared: bits of models, and what is on record."""

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from perinvfl.core import checkpoint
from perinvfl.runs.records import CHECKPOINT, read_run
from tests.flower.deployed import plain, state_at
from tests.flower.process_files import server_state


def digest(leaves: dict[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name, leaf in sorted(leaves.items()):
        found.update(name.encode() + leaf.cpu().numpy().tobytes())
    return found.hexdigest()


def recorded(folder: Path) -> list[dict[str, Any]]:
    run = read_run(folder)
    assert run is not None and run.finished, f"{folder} holds no finished run"
    dropped = {"privacy", "left_out"}  # what faults may change
    return [{key: value for key, value in event.items() if key not in dropped} for event in plain(run.events)]


def trace_of_simulation(out: Path) -> str:
    (path,) = out.rglob(CHECKPOINT)
    saved = {name: leaf for name, leaf in checkpoint.load(path).items() if name != "seconds"}
    return json.dumps([digest(saved), recorded(path.parent)])


def trace_of_deployment(folder: Path, sites: list[Path]) -> str:
    """ν and the server's optimizer, all that each site keeps, and the record."""
    states = [digest(state_at(site, folder)) for site in sites]
    return json.dumps([digest(server_state(folder)), states, recorded(folder)])


def differing(found: str, expected: str) -> str:
    """What is not the same in two traces of a deployment, in words."""
    (server, states, record), (server_then, states_then, record_then) = json.loads(found), json.loads(expected)
    parts = ["the server's model"] if server != server_then else []
    parts += [f"what site {number} keeps" for number, own in enumerate(states) if own != states_then[number]]
    if len(record) != len(record_then):
        return "; ".join([*parts, "how much is on record"])
    pairs = zip(record, record_then, strict=True)
    return "; ".join([*parts, *(f"on record {event} in place of {then}" for event, then in pairs if event != then)])
