"""Checkpoints: named tensors in one atomic file; a damaged one is noticed."""

import hashlib
import io
from pathlib import Path

import torch
from torch import Tensor

from perinvfl.core.files import write_atomically
from perinvfl.errors import UserError


def save(path: Path, tensors: dict[str, Tensor]) -> None:
    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu() for name, tensor in tensors.items()}, buffer)
    content = buffer.getvalue()
    write_atomically(path, hashlib.sha256(content).digest() + content)


def load(path: Path) -> dict[str, Tensor]:
    content = path.read_bytes()
    if len(content) < 32 or hashlib.sha256(content[32:]).digest() != content[:32]:
        raise UserError(f"The checkpoint {path} is damaged (its checksum differs); delete it to start this run again.")
    return torch.load(io.BytesIO(content[32:]), map_location="cpu", weights_only=True)
