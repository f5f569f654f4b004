"""A disk whose power fails: every write is recorded, and what was not flushed is lost or torn.

`Disk` watches what `perinvfl.core.files` does below a folder, by replacing the `os` and the `open` of that module. A
file's content is safe after fsync of the file, its name after fsync of its folder, and not before. `after` builds
the folder as it may be found when the power fails behind the n-th operation: of a folder's changes of names that were
not flushed a random number survives, in order; of a file's writes each may survive, be torn, or be lost, which leaves
zeros where a later one survives.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perinvfl.core import files

Operation = tuple[str, Any, Any]


@dataclass
class Inode:
    safe: bytes = b""
    writes: list[tuple[int, bytes]] = field(default_factory=list)

    def flush(self) -> None:
        self.safe, self.writes = self.content([len(data) for _, data in self.writes]), []

    def content(self, survive: list[int]) -> bytes:
        """With so many bytes of each write."""
        found = bytearray(self.safe)
        for (at, data), kept in zip(self.writes, survive, strict=True):
            if kept:
                found += bytes(max(0, at + kept - len(found)))
                found[at : at + kept] = data[:kept]
        return bytes(found)

    def lost(self, rng: random.Random) -> bytes:
        return self.content([rng.choice([0, len(data), rng.randint(0, len(data))]) for _, data in self.writes])


class Disk:
    """What happens below a folder from now on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        self.folders = {path for path in root.rglob("*") if path.is_dir()} | {root}
        self.operations: list[Operation] = []

    @contextmanager
    def watched(self) -> Iterator["Disk"]:
        real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink", "makedirs")}
        watching = {**vars(os), **{name: self._recording(name, call) for name, call in real.items()}}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "os", SimpleNamespace(**watching))
            patch.setattr(files, "open", self._open, raising=False)
            yield self

    def _recording(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            names = [f"/proc/self/fd/{arguments[0]}"] if name == "fsync" else arguments
            path, to = Path(os.readlink(names[0]) if name == "fsync" else names[0]), (*arguments, None)[1]
            result = real(*arguments, **named)
            if path.is_relative_to(self.root):
                self.operations.append((name, path, None if to is None else Path(to)))
            return result

        return call

    def _open(self, path: Path, mode: str, **named: Any) -> Any:
        file: Any = open(path, mode, **named)  # noqa: SIM115
        if Path(path).is_relative_to(self.root):
            self.operations.append(("open", Path(path), mode))
            write = file.write

            def recorded(content: Any) -> int:
                data = content.encode() if isinstance(content, str) else bytes(content)
                self.operations.append(("write", Path(path), data))
                return write(content)

            file = _Watched(file, recorded)
        return file

    def after(self, operations: int, to: Path, rng: random.Random, fails: Callable[[Path], bool]) -> None:
        """The folder when the power fails behind so many operations. fails: whose unflushed work is lost."""
        disk = _Names({path: Inode(content) for path, content in self.before.items()}, set(self.folders))
        for operation in self.operations[:operations]:
            disk.do(*operation)
        found, folders = disk.survivors(rng, fails)
        for folder in sorted(folders):
            (to / folder.relative_to(self.root)).mkdir(parents=True, exist_ok=True)
        for path, inode in found.items():
            if path.parent in folders:
                kept = inode.lost(rng) if fails(path) else inode.content([len(data) for _, data in inode.writes])
                (to / path.relative_to(self.root)).write_bytes(kept)


class _Watched:
    def __init__(self, file: Any, write: Callable[[Any], int]) -> None:
        self._file, self.write = file, write

    def __enter__(self) -> "_Watched":
        return self

    def __exit__(self, *what: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Names:
    """Which name stands for which file: flushed, and as the processes see it."""

    def __init__(self, names: dict[Path, Inode], folders: set[Path]) -> None:
        self.safe, self.seen = dict(names), dict(names)
        self.safe_folders, self.seen_folders = set(folders), set(folders)
        self.unflushed: list[tuple[Path, Callable[[dict[Path, Inode], set[Path]], object]]] = []  # by folder, in order

    def do(self, name: str, path: Path, more: Any) -> None:
        if name == "open" and (path not in self.seen or more[0] == "w"):
            self._change(path, _link(path, Inode()))
        elif name == "write":
            inode = self.seen[path]
            at = len(inode.content([len(data) for _, data in inode.writes]))
            inode.writes.append((at, more))
        elif name == "fsync" and path in self.seen:
            self.seen[path].flush()
        elif name == "fsync":
            for folder, change in self.unflushed:
                if folder == path:
                    change(self.safe, self.safe_folders)
            self.unflushed = [(folder, change) for folder, change in self.unflushed if folder != path]
        elif name == "replace":
            self._change(path, _move(path, more, self.seen[path]))
        elif name == "unlink":
            self._change(path, lambda names, folders: names.pop(path, None))
        elif name == "makedirs":
            for folder in reversed([path, *path.parents]):
                if folder not in self.seen_folders and any(known in folder.parents for known in self.seen_folders):
                    self._change(folder, _make(folder))

    def _change(self, path: Path, change: Callable[[dict[Path, Inode], set[Path]], object]) -> None:
        change(self.seen, self.seen_folders)
        self.unflushed.append((path.parent, change))

    def survivors(self, rng: random.Random, fails: Callable[[Path], bool]) -> tuple[dict[Path, Inode], set[Path]]:
        names, folders = dict(self.safe), set(self.safe_folders)
        for changed in dict.fromkeys(folder for folder, _ in self.unflushed):
            changes = [change for folder, change in self.unflushed if folder == changed]
            for change in changes[: rng.randint(0, len(changes)) if fails(changed) else None]:
                change(names, folders)
        reached = {folder for folder in folders if all(p in folders for p in folder.parents if self._within(p))}
        return names, reached

    def _within(self, folder: Path) -> bool:
        return any(known == folder or known in folder.parents for known in self.seen_folders)


def _link(path: Path, inode: Inode) -> Callable[[dict[Path, Inode], set[Path]], object]:
    return lambda names, folders: names.__setitem__(path, inode)


def _make(folder: Path) -> Callable[[dict[Path, Inode], set[Path]], object]:
    return lambda names, folders: folders.add(folder)


def _move(path: Path, to: Path, inode: Inode) -> Callable[[dict[Path, Inode], set[Path]], object]:
    def change(names: dict[Path, Inode], folders: set[Path]) -> None:
        names.pop(path, None)
        names[to] = inode

    return change
