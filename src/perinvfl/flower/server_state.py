"""What a server keeps of a run under way, on its own disk.

The checkpoint after a step holds the server's state and, for each site, the last step of it that was used; it is on
disk before the next step is asked for. A server killed at any moment resumes from its last checkpoint: a step that was
under way is asked again, and the sites do it again from where they were.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms.messages import ServerState
from perinvfl.core import checkpoint, tree
from perinvfl.core.files import write_atomically
from perinvfl.core.sealed import About, read_sealed, seal
from perinvfl.core.unpacking import parse_json
from perinvfl.errors import UserError
from perinvfl.flower.assignment import NEVER

CHECKPOINT = "server.pt"
SPENT = "spent.json"
REMEDY = "restore it from a copy, or delete the folder to start the run again"


@dataclass
class Bookkeeping:
    """All but the server's model."""

    clients: int
    phase: int = 0
    noted: int = NEVER  # the last step in which notes were taken
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    used: list[int] = field(init=False)  # by client, the last step of it that was used
    uploads: list[int] = field(init=False)  # how often each was asked for one: what differential privacy counts
    risks: list[float] = field(init=False)  # of the last round
    facts: dict[str, Any] = field(default_factory=dict)  # what sites found in preparing

    def __post_init__(self) -> None:
        self.used, self.uploads = [NEVER] * self.clients, [0] * self.clients
        self.risks = [math.nan] * self.clients

    def save(self, folder: Path, server: ServerState, about: About) -> None:
        """about: the files that the checkpoint counts on, which are on disk."""
        numbers = {
            "phase": torch.tensor(self.phase),
            "noted": torch.tensor(self.noted),
            "used": torch.tensor(self.used),
            "uploads": torch.tensor(self.uploads),
            "risks": torch.tensor(self.risks, dtype=torch.float64),
            "bytes": torch.tensor([self.bytes_up, self.bytes_down]),
            "seconds": torch.tensor(self.seconds, dtype=torch.float64),
            "facts": torch.frombuffer(bytearray(json.dumps(self.facts).encode()), dtype=torch.uint8),
        }
        checkpoint.save(folder / CHECKPOINT, tree.named_leaves(server, "server") | numbers, about)

    def save_spending(self, folder: Path) -> None:
        """An upload that was asked for counts as spent, even if the server is killed before it comes."""
        write_atomically(folder / SPENT, seal(json.dumps(self.uploads).encode(), {}))

    def recall_spending(self, folder: Path) -> None:
        """Of a run that begins again because its checkpoint is gone: what was asked for before still counts."""
        if (folder / SPENT).exists():
            self.uploads = _spent(folder / SPENT, self.clients)

    def restore(self, folder: Path, private: bool) -> dict[str, Tensor]:
        """The whole checkpoint, for the server's state. private: what was spent must be known."""
        saved = checkpoint.load(folder / CHECKPOINT)
        self.phase, self.noted = int(saved["phase"]), int(saved["noted"])
        self.used, self.uploads = saved["used"].tolist(), saved["uploads"].tolist()
        self.bytes_up, self.bytes_down = saved["bytes"].tolist()
        self.risks, self.seconds = saved["risks"].tolist(), float(saved["seconds"])
        self.facts = json.loads(bytes(saved["facts"].tolist()))
        if (folder / SPENT).exists():
            self.uploads = [max(pair) for pair in zip(self.uploads, _spent(folder / SPENT, self.clients), strict=True)]
        elif private and any(self.uploads):
            raise UserError(f"{folder / SPENT} is missing, so the privacy that was spent is not known; {REMEDY}.")
        return saved


def _spent(path: Path, clients: int) -> list[int]:
    content = path.read_bytes()
    if not content.startswith(b"["):  # as earlier versions wrote it
        _, content = read_sealed(path, "file", REMEDY)
    try:
        uploads = parse_json(content)
    except ValueError:
        uploads = None
    counts = isinstance(uploads, list) and all(type(count) is int and count >= 0 for count in uploads)
    if not counts or len(uploads) != clients:
        raise UserError(f"{path} is damaged, so the privacy that was spent is not known; {REMEDY}.")
    return uploads
