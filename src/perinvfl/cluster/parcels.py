"""What travels between this machine and a node: files of runs, and a user's own code. No shared disk is needed."""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from perinvfl.core.files import TEMPORARY, make_folder, sync_folder, write_atomically, writing
from perinvfl.runs.group import checkpoint_of
from perinvfl.runs.records import ARRIVING
from perinvfl.runs.trial import Trial

Files = dict[str, bytes]  # by path below a folder


def begun_files(trials: list[Trial], out: Path) -> Files:
    """Of trials that were begun on this machine, so that a node resumes them; none where there is no checkpoint."""
    checkpoint = checkpoint_of(trials, out)
    if not checkpoint.exists():
        return {}
    beside = [checkpoint, *checkpoint.with_name(f"{checkpoint.stem}-at_rest").rglob("*")]
    return read_files([*beside, *run_files(trials, out)], out)


def run_files(trials: Iterable[Trial], out: Path) -> list[Path]:
    return [path for trial in trials for path in (out / trial.folder).rglob("*")]


def read_files(paths: Iterable[Path], folder: Path) -> Files:
    """Locks and files that were being written stay behind."""
    whole = (path for path in paths if path.is_file() and path.suffix not in (".lock", TEMPORARY))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in whole}


def write_files(files: Files, folder: Path) -> None:
    for name, content in files.items():
        make_folder((folder / name).parent)
        write_atomically(folder / name, content)


def install(files: Files, trials: Sequence[Trial], out: Path) -> None:
    """Put runs that a node made into the folder, each whole or not at all; what was begun here goes."""
    arriving = out / ARRIVING
    clear(arriving)
    write_files(files, arriving)
    with writing(out):
        for trial in trials:
            place = out / trial.folder
            if place.exists():
                os.replace(place, arriving / f"{trial.folder}.old")
            os.replace(arriving / trial.folder, place)
        sync_folder(out)
        begun = checkpoint_of(list(trials), out)
        for left in () if len(trials) == 1 else begun.parent.glob(f"{begun.stem}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    clear(arriving)


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


# Own code ------------------------------------------------------------------------------------------------------------


def own_code(trials: Iterable[Trial]) -> Files:
    """The modules that trials name, and those of the same folders that they import."""
    names = {name.partition(":")[0] for trial in trials for name in trial.sources}
    roots = {root for name in names if (root := _root(name)) is not None}
    found: Files = {}
    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "").absolute()
        for root in roots if path.suffix == ".py" else ():
            if path.is_relative_to(root) and "site-packages" not in path.relative_to(root).parts:
                found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def _root(module: str) -> Path | None:
    """The folder that a module is imported from."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return None
    path = Path(file).absolute()
    return path.parents[module.count(".") + (path.name == "__init__.py")]


def import_from(code: Files, scratch: Path) -> None:
    """Make the modules of `code` importable in this process."""
    if not code:
        return
    digest = hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()[:16]
    folder = scratch / f"code-{digest}"
    if str(folder) not in sys.path:
        write_files(code, folder)
        sys.path.append(str(folder))
