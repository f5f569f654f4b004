"""What is done on a node: unpack, train in a folder that is thrown away, and send the records back."""

import os
import pickle
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import perinvfl
from perinvfl.cluster.board import Message
from perinvfl.cluster.parcels import Files, import_from, read_files, run_files, write_files
from perinvfl.cluster.relay import Relay
from perinvfl.data.federation import Federation
from perinvfl.errors import Hindered, UserError
from perinvfl.runs.batches import Batch
from perinvfl.runs.trial import give_federations

Send = Callable[[list[Message]], str]


@dataclass(frozen=True)
class Call:
    """One task, as it is sent: a function of a module, its arguments pickled, and what must be there to unpickle."""

    work: Callable[..., Any]  # called with the folder to work in, a function that sends messages, and the arguments
    arguments: bytes
    code: Files  # own modules
    cores: int
    versions: tuple[str, str]


@dataclass(frozen=True)
class Answer:
    """What became of a call: a value, or a sentence."""

    node: str
    value: Any = None
    refused: str = ""
    hindered: bool = False  # the sentence is about the node, and not about what was asked


def versions() -> tuple[str, str]:
    """Whatever torch was built for."""
    return perinvfl.__version__, torch.__version__.partition("+")[0]


def carry_out(call: Call, send: Send, extra: Sequence[Any]) -> Answer:
    """extra: what was too large to travel with the call."""
    node = socket.gethostname()
    if versions() != call.versions:
        theirs, ours = (" and torch ".join(pair) for pair in (versions(), call.versions))
        words = f"it has perinvfl {theirs}, this machine perinvfl {ours}; records would differ. Install the same."
        return Answer(node, refused=words, hindered=True)
    torch.set_num_threads(call.cores)
    try:
        with scratch_folder() as folder:
            import_from(call.code, folder.parent)
            return Answer(node, call.work(folder, send, *pickle.loads(call.arguments), *extra))
    except UserError as error:
        return Answer(node, refused=str(error), hindered=isinstance(error, Hindered))
    except MemoryError:
        return Answer(node, refused="there is not enough memory for this.", hindered=True)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return Answer(node, refused=f"{where}{error.strerror or error}.", hindered=True)


def train_batch(
    folder: Path, send: Send, batch: Batch, begun: Files, places: list[int], *federations: Federation
) -> tuple[Files, bool, tuple[float, str]]:
    """The files of the runs, whether they came to their end, and what is told then.

    places: of which trial each federation is.
    """
    give_federations(zip([batch.trials[place] for place in places], federations, strict=True))
    write_files(begun, folder)
    relay = Relay(batch.trials, send)
    ended = batch.train(folder, relay)
    return read_files(run_files(batch.trials, folder), folder), ended, relay.summary


def do_job(folder: Path, send: Send, work: Callable[[Any, Path], Any], job: Any) -> Any:
    """Work other than training batches."""
    return work(job, folder)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of this process below the node's folder for temporary files; what killed processes left there goes."""
    own = Path(tempfile.gettempdir()) / f"perinvfl-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    host = socket.gethostname()
    for left in own.glob(f"{host}-*"):
        process = left.name.removeprefix(f"{host}-")
        if process.isdigit() and not _alive(int(process)):
            shutil.rmtree(left, ignore_errors=True)
    folder = own / f"{host}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _alive(process: int) -> bool:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, 0)
        return True
    return False
