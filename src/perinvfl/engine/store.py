"""Where the clients' states are kept between rounds.

`Stacked` holds all of them in one tree on the device: the way for a batched program. `PerClientStore` holds one
state per client, made when the client first takes part, and can keep those at rest in memory-mapped files, so that
memory grows with the clients taking part and not with all clients.

Files and crashes: rows changed since the last checkpoint stay in memory and travel inside the next checkpoint; only
then are they written to the mapped files. A run that is killed in the middle of that writes them again from the
checkpoint when it resumes, so the files never show a round that the checkpoint does not. A checkpoint therefore costs
what the clients that took part since the last one cost, and one bit for each of the others.
"""

import ctypes
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms.base import ClientState
from perinvfl.core import tree
from perinvfl.core.files import make_folder, sync_folder, writing
from perinvfl.errors import UserError

MOST_WAITING = 2**27  # bytes of states that wait in memory for a checkpoint


class Stacked:
    """All states of all trials, [T, N, ...]."""

    def __init__(self, initial: ClientState, clients: int, everyone: Tensor) -> None:
        # initial: [T, ...]; everyone: the ids that mean all clients in order, known by identity
        self.states: ClientState = tree.over(
            lambda leaf: leaf[:, None].expand(leaf.shape[0], clients, *leaf.shape[1:]).clone(), initial
        )
        self.everyone = everyone

    def take(self, ids: Tensor) -> ClientState:
        if ids is self.everyone:
            return self.states
        trial = torch.arange(ids.shape[0], device=ids.device)[:, None]
        return tree.over(lambda leaf: leaf[trial, ids], self.states)

    def put(self, ids: Tensor, states: ClientState) -> None:
        if ids is self.everyone:
            tree.over(lambda leaf, new: leaf.copy_(new), self.states, states)
            return
        trial = torch.arange(ids.shape[0], device=ids.device)[:, None]
        tree.over(lambda leaf, new: leaf.index_put_((trial, ids), new), self.states, states)

    def snapshot(self) -> dict[str, Tensor]:
        return tree.named_leaves(tree.over(torch.clone, self.states), "clients")

    @property
    def full(self) -> bool:
        return False

    def settle(self) -> None:
        """Nothing to write beside the checkpoint."""

    def restore(self, saved: dict[str, Tensor]) -> None:
        tree.over(lambda leaf, new: leaf.copy_(new), self.states, tree.fill(self.states, saved, "clients"))


class PerClientStore:
    """One state a client and trial; a client that never took part is still at the initial state."""

    def __init__(self, initial: list[ClientState], clients: int, folder: Path | None) -> None:
        self.initial, self.clients = initial, clients
        self.recent: dict[int, ClientState] = {}  # by place = trial * N + client; all rows, or those not yet settled
        self.settled = torch.zeros(len(initial) * clients, dtype=torch.bool)  # places whose row is in the mapped files
        self.folder = folder
        self.row_bytes = sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(initial[0]))

    @cached_property
    def files(self) -> list[Tensor]:
        """One for each leaf of a state, with a row for each place; made when they are first needed."""
        assert self.folder is not None
        make_folder(self.folder)
        mapped = []
        for path, leaf, size in self._layout():
            # Sparse: a row that was never written takes no room on disk.
            rows = torch.from_file(str(path), shared=True, size=size, dtype=leaf.dtype)
            mapped.append(rows.view(len(self.initial) * self.clients, *leaf.shape))
        sync_folder(self.folder)
        return mapped

    def _layout(self) -> list[tuple[Path, Tensor, int]]:
        """Each file, the leaf it keeps, and how many numbers it holds."""
        assert self.folder is not None
        rows = len(self.initial) * self.clients
        leaves = tree.leaves(self.initial[0])
        return [(self.folder / f"{number}.rows", leaf, rows * leaf.numel()) for number, leaf in enumerate(leaves)]

    def take(self, ids: Tensor) -> list[list[ClientState]]:
        return [[self._row(t * self.clients + i) for i in row] for t, row in enumerate(ids.tolist())]

    def put(self, ids: Tensor, states: list[list[ClientState]]) -> None:
        for t, row in enumerate(ids.tolist()):
            for i, state in zip(row, states[t], strict=True):
                self.recent[t * self.clients + i] = state

    @property
    def full(self) -> bool:
        """Whether so many rows wait to be written to the files that a checkpoint should not wait."""
        return self.folder is not None and len(self.recent) * self.row_bytes > MOST_WAITING

    def snapshot(self) -> dict[str, Tensor]:
        saved = {
            "places": torch.tensor(sorted(self.recent), dtype=torch.int64),
            "settled": _as_bits(self.settled),
        }
        if self.recent:
            rows = tree.stack([self.recent[place] for place in sorted(self.recent)])
            saved |= tree.named_leaves(rows, "clients")
        return saved

    def settle(self) -> None:
        """After a checkpoint is safe on disk: move the rows it holds to the mapped files."""
        if self.folder is None:
            return
        for number in range(len(self.files)):
            path = self.folder / f"{number}.rows"
            with writing(path), open(path, "rb+", buffering=0) as file:
                for place, state in self.recent.items():
                    # Written, not assigned through the map: a full disk is then an error, not a killed process.
                    _write_row(file.fileno(), tree.leaves(state)[number], place)
                os.fsync(file.fileno())
        self.settled[list(self.recent)] = True
        self.recent.clear()

    def restore(self, saved: dict[str, Tensor]) -> None:
        self.settled, self.recent = _from_bits(saved["settled"], len(self.settled)), {}
        for path, leaf, size in self._layout() if bool(self.settled.any()) else ():
            if not path.exists() or path.stat().st_size != size * leaf.element_size():
                raise UserError(
                    f"{path} is missing or was cut, and the checkpoint counts on it; restore it from a copy, or delete "
                    "the run's folder to start the run again."
                )
        places = saved["places"].tolist()
        if places:
            template = tree.over(lambda leaf: leaf[None].expand(len(places), *leaf.shape), self.initial[0])
            rows = tree.fill(template, saved, "clients")
            self.recent = {place: tree.over(lambda leaf, k=k: leaf[k].clone(), rows) for k, place in enumerate(places)}
        self.settle()

    def _row(self, place: int) -> ClientState:
        if place in self.recent:
            return self.recent[place]
        initial = self.initial[place // self.clients]
        if not self.settled[place]:
            return initial
        parts = iter([mapped[place].clone() for mapped in self.files])
        return tree.over(lambda leaf: next(parts), initial)


def _as_bits(flags: Tensor) -> Tensor:
    """[n] bool -> [n / 8] bytes."""
    padded = torch.zeros((len(flags) + 7) // 8 * 8, dtype=torch.uint8)
    padded[: len(flags)] = flags
    return (padded.view(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def _from_bits(saved: Tensor, count: int) -> Tensor:
    """The inverse; older checkpoints hold the places themselves."""
    flags = torch.zeros(count, dtype=torch.bool)
    if saved.dtype == torch.int64:
        flags[saved] = True
        return flags
    return (saved[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten()[:count].bool()


def _write_row(file: int, leaf: Tensor, place: int) -> None:
    row = leaf.contiguous()
    size = row.numel() * row.element_size()
    os.pwrite(file, (ctypes.c_char * size).from_address(row.data_ptr()), place * size)


def unstack(states: Any, trials: int, n: int) -> list[list[ClientState]]:
    """[T, n, ...] -> rows, for a batched executor that works with `PerClientStore`."""
    return [[tree.over(lambda leaf, t=t, i=i: leaf[t, i].cpu(), states) for i in range(n)] for t in range(trials)]
