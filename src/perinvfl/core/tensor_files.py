"""Tensors in torch's own file format, read without running anything and without growing beyond memory.

The format is a zip archive with a pickle that says how tensors lie in the other members. `weights_only` runs no code of
it. What is left to check: members that are compressed (a bomb), and tensors that repeat one number so often that no
memory holds them, and containers that hold each other so often that nobody gets through them. A tensor may be larger
than the file, and two may share their numbers: `torch.save` keeps that.
"""

import io
import zipfile
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.memory import free_memory


def load_tensors(content: bytes) -> Any:
    """What `torch.save` wrote: tensors in plain containers. Raises ValueError for anything else."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
    except Exception as error:  # zipfile has many
        raise ValueError(f"no archive of tensors: {error}") from None
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("a member is compressed")
    if sum(member.file_size for member in members) > len(content):
        raise ValueError("its members are larger than the file")
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        _check(found, [free_memory() / 2, len(content)])
    except Exception as error:  # whatever the reader finds wrong: it has no error of its own
        raise ValueError(f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}") from None
    return found


def _check(found: Any, left: list[float]) -> None:
    """Plain containers of tensors that together fit into memory, each number written out.

    left: bytes, and values; each takes a byte of the file at least, unless a container is held more than once.
    """
    left[1] -= 1
    if left[1] < 0:
        raise ValueError("its containers hold each other again and again")
    if isinstance(found, Tensor):
        left[0] -= found.numel() * found.element_size()
        if left[0] < 0 or found.layout is not torch.strided or found.is_quantized:
            raise ValueError("its tensors are larger than what fits into memory, or sparse")
    elif isinstance(found, dict):
        for key, value in found.items():
            _check(key, left)
            _check(value, left)
    elif isinstance(found, list | tuple):
        for value in found:
            _check(value, left)
    elif not isinstance(found, str | int | float | bool | None):
        raise ValueError(f"it holds a {type(found).__name__}")
