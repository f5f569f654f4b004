"""Data that a program holds in memory, as arrays or as a data frame, as a federation."""

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from perinvfl.core import config
from perinvfl.data.federation import Federation, Origin
from perinvfl.data.own import readers
from perinvfl.data.own.dealing import RowDealing, dealt
from perinvfl.data.own.division import Division
from perinvfl.data.own.files import Source, federation_of, usable_rows
from perinvfl.data.own.rows import Rows
from perinvfl.data.own.stand_ins import mark_missing
from perinvfl.errors import UserError


@dataclass(frozen=True)
class ArraySettings(Division, RowDealing):
    """How arrays were divided, and what was in them."""

    checksum: str = ""


@dataclass(frozen=True)
class FrameSettings(Division, RowDealing, Source):
    """How a data frame was read and divided, and what was in it."""

    unnamed = ("path",)  # there is none


def array_federation(rows: Rows, division: dict[str, Any], seed: int) -> Federation:
    given = config.build(ArraySettings, {**division, "checksum": checksum_of_rows(rows)}, "data")
    return _divided(rows, "arrays", given, seed)


def frame_federation(frame: Any, settings: dict[str, Any], seed: int) -> Federation:
    """Settings as for a table in a file."""
    asked = config.build(FrameSettings, settings, "data")
    kind = readers.frame_kind(frame)
    found = mark_missing(readers.read_frame(frame, asked.columns), asked.missing_values, asked.columns.gaps)
    rows = usable_rows(found, asked, kind)
    return _divided(rows, "frame", dataclasses.replace(asked, checksum=checksum_of_rows(rows)), seed)


def _divided(rows: Rows, name: str, settings: Any, seed: int) -> Federation:
    if settings.leave_one_context_out:
        raise UserError("leave_one_context_out makes several federations; name one context in test_contexts at a time.")
    made = federation_of(dealt(rows, settings, seed), settings, seed, name=name)
    return dataclasses.replace(made, origin=Origin(name, settings, seed))


def checksum_of_rows(rows: Rows) -> str:
    """Sixteen hex digits of what is in them."""
    layout = repr((rows.task, rows.clients, rows.contexts, rows.classes, rows.features, tuple(rows.x.shape)))
    layout += repr(rows.levels) if any(rows.levels) else ""
    digest = hashlib.sha256(layout.encode())
    for part in (rows.x, rows.y, rows.client, rows.context):
        digest.update(part.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
