"""Tensors that lie in a file without a name and are read from there as they are used: data larger than memory.

The file is in the folder for temporary files (`TMPDIR`) and is gone when the process ends, however it ends. Room for it
is taken at once, so that a full disk is an error and not a killed process.
"""

import ctypes
import errno
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import torch
from torch import Tensor

from perinvfl.core.memory import in_words
from perinvfl.errors import UserError

_maps: "weakref.WeakValueDictionary[int, _Map]" = weakref.WeakValueDictionary()  # by the address of their first byte


class _Map(mmap.mmap):
    """A map that can be referred to weakly."""


def mapped_zeros(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of zeros in a file of its own."""
    size = math.prod(shape) * dtype.itemsize
    with _laying_down(size), tempfile.TemporaryFile(prefix="perinvfl") as file:
        if size:
            os.posix_fallocate(file.fileno(), 0, size)
        return _mapped(file, shape, dtype)


class MappedRows:
    """A mapped tensor in the making: rows are added at its end until it is finished.

    >>> with MappedRows() as made:
    ...     made.add(torch.ones(2, 3))
    ...     made.add(torch.zeros(1, 3))
    ...     made.finish((3,), torch.float32).sum(1)
    tensor([3., 3., 0.])
    """

    def __init__(self) -> None:
        with _laying_down(0):
            self._file = tempfile.TemporaryFile(prefix="perinvfl")  # noqa: SIM115
        self._rows = 0

    def __enter__(self) -> "MappedRows":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, rows: Tensor) -> None:
        """[n, ...], all of one type and shape."""
        rows = rows.contiguous()
        size = rows.numel() * rows.element_size()
        with _laying_down(size):
            self._file.write((ctypes.c_char * size).from_address(rows.data_ptr()))
        self._rows += len(rows)

    def finish(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """[rows, *shape]"""
        with _laying_down(0):
            self._file.flush()
        return _mapped(self._file, (self._rows, *shape), dtype)


def _mapped(file: IO[bytes], shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.zeros(*shape, dtype=dtype)
    made = _Map(file.fileno(), size)  # holds the file when it is closed
    flat = torch.frombuffer(made, dtype=dtype)
    _maps[flat.data_ptr()] = made
    return flat.view(*shape)


@contextmanager
def _laying_down(size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder, what = tempfile.gettempdir(), f"{in_words(size)} of data" if size else "Data"
        why = "there is no room" if error.errno == errno.ENOSPC else error.strerror
        raise UserError(f"{what} cannot be written to {folder}: {why}. TMPDIR names another folder.") from None


def is_mapped(tensor: Tensor) -> bool:
    """Whether a tensor, or what it is a view of, lies in such a file."""
    return bool(_maps) and tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in _maps


def let_go() -> None:
    """Give back the memory that parts of such files take up; they are read again when they are next used."""
    for made in list(_maps.values()):
        made.madvise(mmap.MADV_DONTNEED)
