"""One process at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perinvfl.errors import UserError


@contextmanager
def only_one(path: Path, otherwise: str) -> Iterator[None]:
    """Hold a lock file while the work goes on; it ends with the process."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(otherwise) from None
        yield
