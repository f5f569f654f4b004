"""Atomic files: there whole or not at all; and locks, so that two processes never undo each other."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perinvfl.errors import Hindered


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the file, flush to disk, then take its place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a full disk or a forbidden folder into a sentence that names the file."""
    try:
        yield
    except OSError as error:
        raise Hindered(
            f"{path} cannot be written: {error.strerror}. Nothing already saved is lost: "
            "put that right and give the same command again."
        ) from error


@contextmanager
def only_one(path: Path, otherwise: str) -> Iterator[None]:
    """Hold a lock file while the work goes on, so that two processes never undo each other; it ends with this one."""
    with writing(path):
        file = open(path, "w")  # noqa: SIM115  held open while the work goes on
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Hindered(otherwise) from None
        yield
