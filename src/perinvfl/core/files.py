"""Files that survive a power cut: there whole or not at all, and in the order in which they were written.

All that must last goes through this module. A file is on disk after `sync_file`, its name after `sync_folder`; what is
written, renamed or removed before is lost or torn where the power fails. Locks keep two processes apart.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from perinvfl.errors import Hindered

TEMPORARY = ".tmp"  # files that are being written end so, and begin with a dot


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write beside the file, flush to disk, then take its place, and flush that too. mode: who may read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    with writing(path):
        try:
            with open(temporary, "wb", opener=partial(os.open, mode=mode)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        sync_folder(path.parent)


def append(path: Path, text: str) -> None:
    """Add to a file; on disk only after `sync_file`."""
    with writing(path), open(path, "a", encoding="utf-8") as file:
        file.write(text)


def rename(path: Path, to: Path) -> None:
    """Take the place of another file of the same folder, and flush that to disk."""
    with writing(to):
        os.replace(path, to)
        sync_folder(to.parent)


def remove(path: Path) -> None:
    """Remove a file if it is there; it does not come back after a power cut."""
    if path.exists():
        with writing(path):
            os.unlink(path)
            sync_folder(path.parent)


def remove_temporary(folder: Path, stem: str = "") -> None:
    """Files that a process left when it was killed while it wrote; only for who holds the lock of these files."""
    for left in folder.glob(f".{stem}*{TEMPORARY}"):
        with suppress(FileNotFoundError):
            os.unlink(left)


def make_folder(path: Path) -> None:
    """With the folders above it, all on disk."""
    with writing(path):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        os.makedirs(path, exist_ok=True)
        for folder in missing:
            sync_folder(folder.parent)


def sync_file(path: Path) -> None:
    """What was written to a file is on disk after this."""
    with writing(path):
        _sync(path, os.O_RDWR)


def sync_folder(folder: Path) -> None:
    """What was created, renamed or removed in a folder is on disk after this."""
    try:
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot flush a folder
            raise


def _sync(path: Path, flags: int) -> None:
    file = os.open(path, flags)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def is_there(path: Path) -> bool:
    """Whether a path exists; a name that no file can have is that of none."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def read_file(path: Path) -> bytes:
    """The content of a file. A pipe or a device, which may never end, is an OSError, as what cannot be read is."""
    check_is_file(path)
    return path.read_bytes()


def check_is_file(path: Path) -> None:
    if not stat.S_ISREG(os.stat(path).st_mode) and not path.is_dir():
        raise OSError(errno.EINVAL, "It is a pipe or a device, no file", str(path))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a full disk or a forbidden folder into a sentence that names the file."""
    try:
        yield
    except OSError as error:
        raise Hindered(
            f"{path} cannot be written: {error.strerror}. Nothing already saved is lost: "
            "fix that and run the same command again."
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
