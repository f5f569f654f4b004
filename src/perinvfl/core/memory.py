"""What fits into memory: what is too large is refused with its size and what is free, before anything is made."""

import ctypes
import math
import os
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from perinvfl.errors import UserError

CGROUP = Path("/sys/fs/cgroup")
NO_MEMORY = "can't allocate memory"  # in torch's words
# malloc's own words, of glibc's malloc.h
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT = 2**30  # bytes in all
KEPT_BLOCKS = 2**27, 2**25  # bytes of one block: the first that is admitted; older glibc admits the second at most
UNITS = (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def check_fits(bytes: float, what: str, free: float | None = None) -> None:
    """Refuse what needs more than there is. what: the beginning of the sentence, such as "The model".

    >>> check_fits(1000, "The model")
    >>> check_fits(2e15, "The model", free=1e9)
    Traceback (most recent call last):
    perinvfl.errors.UserError: The model would need 2 PB of memory, and 1 GB are free here.
    """
    free = free_memory() if free is None else free
    if bytes > free:
        raise UserError(f"{what} would need {in_words(bytes)} of memory, and {in_words(free)} are free here.")


@contextmanager
def refusing_too_large(what: str) -> Iterator[None]:
    """Where memory runs out while something is made, the same sentence: what it takes on the way is known only then.

    >>> with refusing_too_large("The table"):
    ...     raise MemoryError
    Traceback (most recent call last):
    perinvfl.errors.UserError: The table would need more memory than is free here.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch has no error of its own for it on the CPU
        if isinstance(error, RuntimeError) and NO_MEMORY not in str(error):
            raise
        raise UserError(f"{what} would need more memory than is free here.") from None


def free_memory() -> float:
    """Bytes that this process may still take, by the machine, its container and its own limit; infinite if unknown."""
    return min(_machine(), _container(), _process())


def keep_freed_memory() -> None:
    """Let this process keep memory that it frees, up to KEPT bytes, for what it asks for next.

    Handed back to the system at the end of a step and asked for anew in the next, every page of it is cleared again: a
    tenth of a step at batch 1000, a third with all of 45 000 samples. With glibc alone, and not where the user has
    told malloc what to do.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        any(tune(MMAP_THRESHOLD, block) for block in KEPT_BLOCKS)
        tune(TRIM_THRESHOLD, KEPT)


def in_words(bytes: float) -> str:
    """
    >>> in_words(1536), in_words(3.2e9), in_words(10**400)
    ('1.54 kB', '3.2 GB', 'more than 1000 PB')
    """
    if bytes >= 1e18:
        return "more than 1000 PB"
    unit, size = next((unit for unit in UNITS if bytes >= unit[1]), UNITS[-1])
    return f"{bytes / size:.3g} {unit}"


def product(sizes: Iterable[int]) -> float:
    """Of whole numbers of any size: infinite where no float holds it."""
    made = math.prod(sizes)
    return float(made) if made < 10**300 else math.inf


def _machine() -> float:
    try:
        with open("/proc/meminfo") as file:
            kilobytes = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return math.inf
    return 1024.0 * kilobytes


def _container() -> float:
    try:
        most, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return math.inf if most == "max" else max(0.0, float(most) - float(used))
    except (OSError, ValueError):
        return math.inf


def _process() -> float:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return math.inf
    try:
        with open("/proc/self/statm") as file:
            return max(0.0, float(most - int(file.read().split()[0]) * resource.getpagesize()))
    except (OSError, ValueError):
        return float(most)
