"""Checkpoints: named tensors in one atomic file; a damaged one is noticed."""

import io
from pathlib import Path

import torch
from torch import Tensor

from perinvfl.core.files import write_atomically
from perinvfl.core.sealed import About, read_sealed, seal


def save(path: Path, tensors: dict[str, Tensor], about: About | None = None) -> None:
    """about: what the checkpoint counts on, which must be on disk already; `sealed.read_about` reads it."""
    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu() for name, tensor in tensors.items()}, buffer)
    write_atomically(path, seal(buffer.getvalue(), about or {}))


def load(path: Path) -> dict[str, Tensor]:
    _, content = read_sealed(path, "checkpoint", "delete it to start this run again")
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
