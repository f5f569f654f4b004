"""Whether kernels can be compiled here, and how their work is divided."""

import importlib
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import torch

from perinvfl.core.plugins import in_words

CAPABLE = (8, 0)  # of products in bfloat16 and TF32
PROGRAMS = 264  # that keep a GPU busy: two for each of its processors


def compiled(name: str, try_out: Callable[[ModuleType], None]) -> ModuleType | None:
    """A module of kernels, if they can be compiled here."""
    try:
        module = importlib.import_module(f"perinvfl.models.fused.{name}")
    except ImportError:
        return None
    if torch.cuda.get_device_capability() < CAPABLE:
        return None

    def tried() -> None:
        try_out(module)
        torch.cuda.synchronize()

    try:
        # In a thread of its own: where a gradient is being taken, this one has no plain tensors to try it with.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(tried).result()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever stands in a compiler's way
        warnings.warn(f"Triton cannot compile here ({in_words(error)}): kernels are not fused.", stacklevel=4)
        return None
    return module


def parts_of(number: int, size: int) -> int:
    return -(-number // size)
