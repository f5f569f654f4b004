"""What a federation of processes leaves on its disks."""

from pathlib import Path

import torch

from perinvfl.core import checkpoint
from perinvfl.flower.server_run import run_folder
from perinvfl.flower.settings import DeploymentSettings
from perinvfl.runs.records import read_events
from perinvfl.runs.trial import Trial
from tests.flower.deployed import assert_same_files, simulate, state_at
from tests.flower.processes import SITES, Processes


def server_state(folder: Path) -> dict[str, torch.Tensor]:
    saved = checkpoint.load(folder / "server.pt")
    return {key: value for key, value in saved.items() if key.startswith("server")}


def site_state(federation: Processes, site: str, folder: Path) -> dict[str, torch.Tensor]:
    return state_at(federation.site(site), folder)


def assert_as_simulated(federation: Processes, folder: Path, trial: Trial, place: Path) -> None:
    """ν, q, the server's optimizer, everything that each site keeps, and the record: the same bits."""
    assert_same_files(trial, folder, [federation.site(site) for site in SITES], simulate(trial, place))


def folder_of(federation: Processes, file: Path, trial: Trial) -> Path:
    return federation.folder / "server" / "runs" / file.stem / run_folder(trial, DeploymentSettings())


def left_out(folder: Path, site: str) -> list[tuple[int, str]]:
    events = [event for event in read_events(folder / "events.jsonl") if event["event"] == "left out"]
    return [(event["round"] - 1, event["why"]) for event in events if event["site"] == site]


def lost_rounds(folder: Path) -> dict[int, list[int]]:
    """By client, the rounds that went on without it."""
    partial = [event for event in read_events(folder / "events.jsonl") if event["event"] == "partial"]
    return {
        client: [event["round"] - 1 for event in partial if site not in event["used"]]
        for client, site in enumerate(SITES)
    }


def rounds_done(federation: Processes, file: Path) -> int:
    """Of the only run of an experiment, from its checkpoint."""
    found = list((federation.folder / "server" / "runs" / file.stem).glob("*/server.pt"))
    return int(checkpoint.load(found[0])["server.round"]) if found else -1


def progress_of(federation: Processes, file: Path) -> tuple[int, int]:
    """The phase and the rounds done in it, of the only run of an experiment."""
    found = list((federation.folder / "server" / "runs" / file.stem).glob("*/server.pt"))
    saved = checkpoint.load(found[0]) if found else None
    return (-1, -1) if saved is None else (int(saved["phase"]), int(saved["server.round"]))
