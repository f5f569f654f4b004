"""A run is a program of phases: what clients and server do together, then what each client notes for itself, alone.

The reference model is a phase of FedAvg; alignment is a phase in which one client trains and the others listen; the
algorithm that was asked for is the last. Whoever drives a program, on one machine or across machines, knows no more
about it than this file says.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from perinvfl.algorithms.base import Algorithm
from perinvfl.data.federation import Federation, Task
from perinvfl.learning.training import Training
from perinvfl.models import Model, ModelSettings, Precision

# What clients noted for themselves, by name, each tensor with a client axis [N, ...] (N = 1 at a client). Notes never
# leave a client; they are kept with its state, so that what was found is never worked out again.
Notes = dict[str, Tensor]
Predict = Callable[[Tensor], Tensor]  # [M, ...] a client's own samples -> [M, outputs] logits of the phase's model


class Described(Protocol):
    """What must be known of data to tell whether a program can run on them, and what its phases train."""

    @property
    def task(self) -> Task: ...
    @property
    def outputs(self) -> int: ...
    @property
    def contexts(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def tests(self) -> Collection[str]: ...


LENGTH = ".length"  # of what was stacked, beside its name


def sees_all(federation: Federation, notes: Notes) -> Federation:
    """The data as they are."""
    return federation


@dataclass(frozen=True)
class Phase:
    name: str  # for progress and records
    algorithm: Algorithm
    training: Training  # its rounds and how they are carried out
    # What the data look like in this phase, of one client or of many: (data as given, notes so far) -> data.
    sees: Callable[[Federation, Notes], Federation] = sees_all
    # What a client notes when the phase is over: (own data as given, own notes so far, its number, predict) -> notes.
    note: Callable[[Federation, Notes, int, Predict], Notes] | None = None
    first_alone: bool = False  # only the first client trains
    # What is trained, where it is not the model that was asked for: (description of the data, that model, precision).
    model: Callable[["Described", ModelSettings | Model, Precision], Model] | None = None
    note_every: int = 0  # rounds after which clients take these notes anew, from the model of the time; 0: at the end
    note_after: tuple[int, ...] = ()  # rounds after which clients take these notes, besides the end

    @property
    def rounds(self) -> int:
        return self.training.rounds

    def model_for(self, data: "Described", asked: ModelSettings | Model) -> ModelSettings | Model:
        return asked if self.model is None else self.model(data, asked, self.training.precision)

    def training_with(self, samples: int) -> Training:
        """How a phase is carried out by clients of whom the largest has so many samples."""
        if not self.first_alone or not self.training.batch_size:
            return self.training
        return dataclasses.replace(self.training, batch_size=min(self.training.batch_size, samples))

    def notes_due(self, round: int) -> bool:
        """Whether clients take notes before this round."""
        return round in self.note_after or bool(self.note_every and round and round % self.note_every == 0)


@dataclass(frozen=True)
class Program:
    """The phases in front, and the last one, whose models are the result."""

    preparation: tuple[Phase, ...]
    main: Phase
    # What of a client's notes may be told, as plain values for the record: (own notes) -> facts.
    facts: Callable[[Notes], dict[str, Any]]
    padding: dict[str, Any] = field(default_factory=dict)  # what fills up shorter notes, by name, where it is not 0
    own_preparation: bool = False  # the phases in front belong to the algorithm, whatever the settings ask for

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (*self.preparation, self.main)


def stack_notes(each: Sequence[Notes], padding: dict[str, Any]) -> Notes:
    """The notes of several clients, [1, ...] each, as one, [N, ...]; what is shorter is filled up, its length kept."""
    stacked: Notes = {}
    for name in each[0] if each else ():
        rows = [notes[name] for notes in each]
        if rows[0].ndim > 1:
            lengths = [row.shape[1] for row in rows]
            rows = [_lengthen(row, max(lengths), padding.get(name, 0)) for row in rows]
            stacked[name + LENGTH] = torch.tensor(lengths)
        stacked[name] = torch.cat(rows)
    return stacked


def notes_of(notes: Notes, client: int) -> Notes:
    """One client's own part of stacked notes, [1, ...]."""
    own = {}
    for name, leaf in notes.items():
        if not name.endswith(LENGTH):
            length = notes.get(name + LENGTH)
            own[name] = (
                leaf[client : client + 1] if length is None else leaf[client : client + 1, : int(length[client])]
            )
    return own


def _lengthen(row: Tensor, length: int, padding: Any) -> Tensor:
    """[1, M, ...] with M made up to a length."""
    return torch.cat([row, row.new_full((1, length - row.shape[1], *row.shape[2:]), padding)], 1)
