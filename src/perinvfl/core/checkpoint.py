"""Checkpoints: named tensors in one atomic file; a damaged one is noticed."""

import io
from pathlib import Path

import torch
from torch import Tensor

from perinvfl.core.files import write_atomically
from perinvfl.core.sealed import About, read_sealed, seal
from perinvfl.core.tensor_files import load_tensors
from perinvfl.errors import UserError

# What a checkpoint of other tensors ends in, where a program takes it for its own.
NOT_FITTING = KeyError, IndexError, RuntimeError, TypeError, ValueError, OverflowError


def unfit(path: Path, error: Exception, remedy: str = "delete it to start the run again") -> UserError:
    return UserError(f"The checkpoint {path} does not fit this run ({type(error).__name__}); {remedy}.")


def save(path: Path, tensors: dict[str, Tensor], about: About | None = None) -> None:
    """about: what the checkpoint counts on, which must be on disk already; `sealed.read_about` reads it."""
    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu() for name, tensor in tensors.items()}, buffer)
    write_atomically(path, seal(buffer.getvalue(), about or {}))


def load(path: Path) -> dict[str, Tensor]:
    again = "delete it to start this run again"
    _, content = read_sealed(path, "checkpoint", again)
    try:
        found = load_tensors(content)
    except ValueError as error:
        raise UserError(f"The checkpoint {path} is damaged ({error}); {again}.") from None
    if not isinstance(found, dict) or not all(isinstance(leaf, Tensor) for leaf in found.values()):
        raise UserError(f"The checkpoint {path} holds no tensors by name; {again}.")
    return found
