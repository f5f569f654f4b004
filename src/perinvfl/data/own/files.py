"""Own data as a benchmark: `[data] benchmark = "file"`, from a table, arrays or a folder of photographs.

Held-out contexts are the out-of-distribution tests. Their rows take no part in training, in validation or in the
statistics that features are standardised with. Of every other context of a client, a share of the rows is kept for a
test in distribution and another for validation.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from perinvfl.core.config import NumbersByName, suggest
from perinvfl.core.files import check_is_file
from perinvfl.core.hyper import hyper
from perinvfl.core.naming import name_of, one_spelling, shortened
from perinvfl.data.constant import constant_scores, label_counts
from perinvfl.data.federation import Federation
from perinvfl.data.own import readers
from perinvfl.data.own.dealing import RowDealing, dealt
from perinvfl.data.own.division import Division, divide, split_rows
from perinvfl.data.own.fitted import Fitted
from perinvfl.data.own.fitting import fit_rows
from perinvfl.data.own.reading import Reading
from perinvfl.data.own.rows import AskedTask, BadData, Columns, Found, Rows, decide
from perinvfl.data.own.shards import read_shards
from perinvfl.data.own.stand_ins import mark_missing
from perinvfl.errors import UserError

NO_NUMBERS = NumbersByName()
SAME = "same contexts"  # the name of the test in distribution


@dataclass(frozen=True)
class Place:
    """Where the data are, and who is who in them."""

    path: str = hyper(
        "",
        "where the data are: a CSV or Parquet table, an .npz or .safetensors file, a folder of Parquet or "
        ".npz shards, or a folder of photographs as client/context/class/; has no default",
    )
    label: str = hyper("label", "column to predict; in files of arrays the label is the array y")
    client: str = hyper(
        "client",
        'column that names the client of each row, such as its hospital, so that each gets a model; "" if all '
        "rows belong to one client",
    )


@dataclass(frozen=True)
class Source(Reading, Place):
    """What to read, and how."""

    exclude_clients: tuple[str | int, ...] = hyper(
        (), "clients to leave out altogether, such as one with too few rows; empty leaves none out"
    )
    task: AskedTask = hyper(
        "auto",
        "what the label is, which decides the loss and the scores: binary, multiclass or regression; auto "
        "takes two values as binary, names or few whole numbers as classes, and other numbers as a regression",
    )
    classes: tuple[str | int, ...] = hyper(
        (), "names of the classes, in the order in which tables should show them; empty takes those in the file, sorted"
    )
    checksum: str = hyper(
        "",
        "checksum that the data must have, so that a file that was changed is noticed and refused; empty "
        "accepts any file, and records its checksum",
    )

    @property
    def columns(self) -> Columns:
        gaps = self.missing == "impute"
        return Columns(self.label, self.client, self.context, self.features, self.ignore, self.categories, gaps)


@dataclass(frozen=True)
class FileSettings(Division, RowDealing, Source):
    """All of them, the source first."""

    # Where the file lies does not change a result, what is in it does.
    unnamed = ("path",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("exclude_clients", "classes"):
            object.__setattr__(self, key, one_spelling(getattr(self, key)))
        if not self.path:
            raise UserError("data.path is missing: name the file or folder that holds the data.")
        path = Path(self.path).expanduser().absolute()
        now = checksum_of(path)
        if self.checksum not in ("", now):
            raise UserError(
                f"data.checksum: {path} has changed since it was used (its checksum is now {now}); "
                "restore it, or leave the checksum out to use it as it is."
            )
        object.__setattr__(self, "path", str(path))
        object.__setattr__(self, "checksum", now)

    @property
    def clients(self) -> int:
        return self.partition_clients if self.partition else len(read_rows(self).clients)

    @property
    def fold(self) -> str:
        """The context that this run of a leave-one-context-out holds out."""
        return self.held_out[0] if self.leave_one_context_out and len(self.test_contexts) == 1 else ""

    def folds(self) -> "list[FileSettings]":
        """One for each context to leave out; itself where that is not asked for, or is done already."""
        if not self.leave_one_context_out or self.fold:
            return [self]
        contexts = self.held_out or read_rows(self).contexts
        return [dataclasses.replace(self, test_contexts=(context,)) for context in contexts]


def checksum_of(path: Path) -> str:
    """Sixteen hex digits of a file's content, or of all files of a folder and their names."""
    try:
        if not path.exists():
            raise UserError(f"data.path: {shortened(str(path))} does not exist.")
        files = readers.shard_files(path) or (readers.photo_files(path) if path.is_dir() else [path])
        for file in files:
            check_is_file(file)
        stats = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)
        return _checksum(path, stats)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{shortened(str(path))} cannot be read: {why}.") from None


@lru_cache(maxsize=64)  # a file is read once while nothing about it changes
def _checksum(path: Path, stats: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for name, _, size in stats:
        if path.is_dir():
            digest.update(f"{Path(name).relative_to(path).as_posix()}\0{size}\0".encode())
        with open(name, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


def read_found(settings: FileSettings) -> Found:
    """The rows of a file and all that is wrong with them, nothing decided."""
    if readers.shard_files(Path(settings.path)):
        raise UserError(f"{settings.path} is a folder of shards; this command looks at one file: name one of them.")
    found = readers.read(Path(settings.path), settings.columns, settings.image_size, settings.colour)
    return mark_missing(found, settings.missing_values, settings.columns.gaps)


def read_rows(settings: FileSettings) -> Rows:
    """The rows of a file, not yet dealt out; refuses a file with any fault."""
    whole = FileSettings(**{key: value for key, value in vars(settings).items() if key not in _DIVISION})
    return _read_rows(whole)


_DIVISION = {field.name for kind in (Division, RowDealing) for field in dataclasses.fields(kind)}


@lru_cache(maxsize=4)
def _read_rows(settings: FileSettings) -> Rows:
    if readers.shard_files(Path(settings.path)):
        return read_shards(settings)
    return usable_rows(read_found(settings), settings, settings.path)


def usable_rows(found: Found, settings: Source, name: str) -> Rows:
    """What was found, if nothing is wrong with it, without the clients to leave aside."""
    rows, faults = decide(found, settings.task, tuple(map(name_of, settings.classes)), settings.label)
    if found.faults or faults:
        raise BadData(name, [*found.faults, *faults])
    return exclude(rows, tuple(map(name_of, settings.exclude_clients)))


def exclude(rows: Rows, clients: Sequence[str]) -> Rows:
    """The rows of all other clients."""
    for name in clients:
        if name not in rows.clients:
            raise UserError(f'data.exclude_clients names "{name}", no client{suggest(name, list(rows.clients))}')
    kept = tuple(name for name in rows.clients if name not in clients)
    if not kept:
        raise UserError("data.exclude_clients leaves no client.")
    if kept == rows.clients:
        return rows
    number = torch.tensor([kept.index(name) if name in kept else -1 for name in rows.clients])
    mine = number[rows.client] >= 0
    left, context = rows.context[mine].unique(return_inverse=True)  # a context may have been theirs alone
    contexts = tuple(rows.contexts[c] for c in left.tolist())
    return dataclasses.replace(
        rows.take(mine),
        client=number[rows.client][mine],
        clients=kept,
        context=context,
        contexts=contexts,
        excluded=int((~mine).sum()),
    )


def file_federation(settings: FileSettings, seed: int, fitted: Fitted | None = None) -> Federation:
    """fitted: what sites fitted together, in place of what these rows would give."""
    if settings.leave_one_context_out and not settings.fold:
        raise UserError(
            "data.leave_one_context_out = true makes one run for each context; name the one to hold out in "
            "test_contexts to get its data."
        )
    if settings.partition and readers.shard_files(Path(settings.path)):
        raise UserError("data.partition deals out the rows of one file; the rows of shards belong to clients already.")
    notes: dict[str, object] = {"file": Path(settings.path).name, "checksum": settings.checksum}
    notes |= {"ignored": list(settings.ignore)} if settings.ignore else {}
    rows = dealt(read_rows(settings), settings, seed)
    return federation_of(rows, settings, seed, name=Path(settings.path).stem, notes=notes, fitted=fitted)


def federation_of(
    rows: Rows,
    division: Division,
    seed: int,
    name: str = "arrays",
    notes: dict[str, object] | None = None,
    fitted: Fitted | None = None,
) -> Federation:
    """Rows divided into training, validation and tests."""
    training, testing, validating = divide(rows, division, seed)
    rows, schema, encoded = fit_rows(rows, training, division, fitted)
    seen = tuple(name for name in rows.contexts if name not in division.held_out)
    number = torch.tensor([seen.index(name) if name in seen else 0 for name in rows.contexts])
    outputs = len(rows.classes) if rows.task == "multiclass" else 1

    tests = {}
    for context in division.held_out:
        tests[context] = split_rows(rows, rows.context == rows.contexts.index(context), torch.zeros_like(number))
    if bool(testing.any()):
        tests[SAME] = split_rows(rows, testing, torch.zeros_like(number))
    train = split_rows(rows, training, number)
    return Federation(
        name=name,
        task=rows.task,
        outputs=outputs,
        contexts=len(seen),
        train=train,
        tests=tests,
        spectrum=division.held_out or tuple(tests),
        validation=split_rows(rows, validating, number) if bool(validating.any()) else None,
        notes={
            **(notes or {}),
            **({"encoding": encoded} if encoded else {}),
            "constant": constant_scores(rows.task, train, tests),
            "sizes": (train.context >= 0).sum(1).tolist(),
            "labels": label_counts(rows.task, len(rows.classes), train),
            "contexts": [int(row[row >= 0].unique().numel()) for row in train.context],
        },
        schema=dataclasses.replace(schema, clients=rows.clients, contexts=seen, classes=rows.classes),
    )


def array_rows(
    x: Any,
    y: Any,
    client: Any = None,
    context: Any = None,
    task: AskedTask = "auto",
    features: Any = None,
    categories: Sequence[str] = (),
    missing_values: NumbersByName = NO_NUMBERS,
) -> Rows:
    """Rows from arrays, tensors, lists or data frames; refuses any fault."""
    names = features if features is not None else readers.column_names(x) or None
    given = {"x": x, "y": y, "client": client, "context": context, "features": names}
    there = {key: value for key, value in given.items() if value is not None}
    found = readers.from_arrays("arrays", "arrays", there, Columns(categories=tuple(categories)))
    found = mark_missing(found, missing_values)
    rows, faults = decide(found, task, label="y")
    if found.faults or faults:
        raise BadData("arrays", [*found.faults, *faults])
    return rows
