"""A site's states of its runs, on its own disk.

A state is kept twice. `pending` is what the last step made of it, `committed` what the server is known to have used.
Whether the server used a step is told with the next thing it asks, as the last step of this site that counts; only then
does pending take the place of committed, by one rename. So a step that was lost, came too late or was refused does not
advance θ_i, and a site killed at any point is either before a step or after it.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from perinvfl.algorithms.messages import ClientState
from perinvfl.core import checkpoint, files, tree
from perinvfl.flower.assignment import NEVER
from perinvfl.preparation.phases import Notes

CLIENT, NOTES = "client", "notes."  # beginnings of names in the files


@dataclass(frozen=True)
class SiteState:
    """What a site remembers of a run between two steps."""

    step: int = NEVER
    phase: int = 0
    client: dict[str, Tensor] = field(default_factory=dict)  # the algorithm's state in this phase; {} before its first
    notes: Notes = field(default_factory=dict)
    noted: int = NEVER  # the step in which the notes were last taken

    def client_state(self, phase: int, initial: ClientState) -> ClientState:
        """A phase begins anew: only notes are carried over from the one before."""
        return tree.fill(initial, self.client, CLIENT) if self.client and phase == self.phase else initial


class StateStore:
    """One folder per run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, run: str) -> Path:
        if not re.fullmatch(r"[\w.-]+", run) or run.startswith("."):
            raise ValueError(f"{run!r} cannot name a run")
        return self.folder / run

    def settle(self, run: str, used: int) -> SiteState:
        """The state that goes with the last step the server used: pending takes its place if it is that step's."""
        place = self.place(run)
        committed = read_state(place / "committed.pt")
        if used == committed.step:
            return committed
        if used < committed.step:
            raise ValueError(f"step {committed.step} of this site was used already, and this comes from before it")
        pending = read_state(place / "pending.pt")
        if pending.step != used:
            raise ValueError(f"the state of step {used} is not here: the folder is another one, or was emptied")
        files.rename(place / "pending.pt", place / "committed.pt")
        return pending

    def hold(self, run: str, state: SiteState) -> None:
        """Keep what a step made of the state until the server has used that step."""
        place = self.place(run)
        files.make_folder(place)
        files.remove_temporary(place)
        numbers = {name: torch.tensor(getattr(state, name)) for name in ("step", "phase", "noted")}
        notes = {NOTES + name: leaf for name, leaf in state.notes.items()}
        checkpoint.save(place / "pending.pt", {**numbers, **notes, **state.client})


def read_state(path: Path) -> SiteState:
    """The state in a file; that before the first step where there is none."""
    if not path.exists():
        return SiteState()
    saved = checkpoint.load(path)
    return SiteState(
        step=int(saved["step"]),
        phase=int(saved["phase"]),
        client={name: leaf for name, leaf in saved.items() if name.startswith(CLIENT)},
        notes={name.removeprefix(NOTES): leaf for name, leaf in saved.items() if name.startswith(NOTES)},
        noted=int(saved["noted"]),
    )
