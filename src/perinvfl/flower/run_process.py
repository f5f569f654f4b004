"""A run's process: on the server's machine, tells the SuperLink that a run begins and is its ServerApp."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from perinvfl import __version__
from perinvfl.core.files import only_one
from perinvfl.errors import UserError
from perinvfl.flower.adapter.reach import Reach
from perinvfl.flower.adapter.run import Control, Heartbeat, Runtime
from perinvfl.flower.grid import SitesGrid
from perinvfl.flower.layout import ServerFolder
from perinvfl.flower.server_process import HEADER

# A run must come with an app; ours is installed already, so this one only says so.
APP = f"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "perinvfl"
version = "{__version__}"
license = "MIT"
dependencies = []
[tool.flwr.app]
publisher = "perinvfl"
[tool.flwr.app.components]
serverapp = "perinvfl.flower.server_app:app"
clientapp = "perinvfl.flower.client_app:app"
[tool.flwr.app.config]
"""


@dataclass(frozen=True)
class Connection:
    """From this machine to the SuperLink on it."""

    folder: ServerFolder
    address: str
    secret: bytes
    authority: bytes

    def control(self) -> Control:
        """With the secret that shows the SuperLink's guard that this process may read the server's folder."""
        return Control.connect(self.address, self.authority, {HEADER.decode(): self.secret.decode()})

    def runtime(self, token: str | None = None) -> Runtime:
        return Runtime.connect(self.address, self.authority, self.secret, token)


def connect(folder: ServerFolder) -> Connection:
    try:
        secret = folder.secret.read_bytes()
    except OSError:
        raise UserError(f"The server is not running; start it with `perinvfl federation up {folder.path}`.") from None
    return Connection(folder, f"127.0.0.1:{folder.port}", secret, folder.authority.read_bytes())


def list_sites(connection: Connection) -> dict[str, Any]:
    """What the SuperLink knows of each site, by name."""
    with _explained(connection):
        nodes = connection.control().nodes()
    by_key = {connection.folder.public_key(site): site for site in connection.folder.sites}
    return {by_key[node.public_key]: node for node in nodes if node.public_key in by_key}


@contextmanager
def running(
    connection: Connection, patience: float = 60.0, tell: Callable[[str], None] = lambda line: None
) -> Iterator[SitesGrid]:
    """A grid to the sites, for as long as the run lasts.

    patience: seconds for which a server that does not answer is asked again, after which the run ends; tell: that it
    does not.
    """
    away = (
        f"The server at {connection.address} does not answer; the run waits {patience:g} s for it. If its process is "
        f"gone, start it with `perinvfl federation up {connection.folder.path}`; if it hangs, end it first."
    )
    reach = Reach(connection.address, connection.authority, patience, lambda: tell(away))
    with _explained(connection):
        _put_away(connection)
        run_id = connection.control().start_run(APP)
        token = _acquire(connection, run_id)
        grid = SitesGrid(connection.address, False, connection.authority, token=token)
        grid.wait_for_server(reach)
        runtime = connection.runtime(token)
        runtime.begin(grid)
    heartbeat = Heartbeat(runtime)
    heartbeat.start()
    reach.watch()
    failure: str | None = "the run did not finish"
    try:
        with _at_work(connection.folder.running / str(run_id), reach), _lost(connection):
            yield grid
        failure = None
    finally:
        reach.close()
        if not reach.away:
            with suppress(httpx.HTTPError):  # the SuperLink may be gone, and with it all it knew of the run
                runtime.end(failure)
        heartbeat.stop()
        grid.close()


@contextmanager
def _at_work(path: Path, reach: Reach) -> Iterator[None]:
    """A file that names the run, locked while its process lives; it stays where the server is not told of the end."""
    path.parent.mkdir(exist_ok=True)
    with only_one(path, f"Another process is at work on {path}."):
        try:
            yield
        finally:
            if not reach.away:
                path.unlink(missing_ok=True)


def _put_away(connection: Connection) -> None:
    """End the runs whose process was killed: sites would wait a minute for what it can no longer send them."""
    for path in connection.folder.running.glob("*"):
        with suppress(UserError), only_one(path, "alive"):
            with suppress(httpx.HTTPStatusError):  # a server that was started anew knows nothing of it
                connection.control().stop_run(int(path.name))
            path.unlink()


def _acquire(connection: Connection, run_id: int) -> str:
    """The token of this run. A run that was begun by a process that then died is put away."""
    runtime = connection.runtime()
    while True:
        token, run = runtime.acquire()
        if not token:
            raise UserError("The server did not accept the run; restart it with `perinvfl federation up`.")
        if run == run_id:
            return token
        connection.runtime(token).end("abandoned")


@contextmanager
def _lost(connection: Connection) -> Iterator[None]:
    """The server went away in the middle of a run."""
    try:
        yield
    except (httpx.TransportError, httpx.HTTPStatusError) as error:
        away = isinstance(error, httpx.TransportError)
        raise UserError(
            f"The server at {connection.address} {'no longer answers' if away else 'was restarted'}; "
            f"{f'{_begin_again(connection)}, then ' if away else ''}"
            "the same command with --resume resumes the run."
        ) from None


def _begin_again(connection: Connection) -> str:
    return f"start it with `perinvfl federation up {connection.folder.path}` (if its process hangs, end it first)"


@contextmanager
def _explained(connection: Connection) -> Iterator[None]:
    try:
        yield
    except httpx.TransportError:
        raise UserError(f"The server at {connection.address} does not answer; {_begin_again(connection)}.") from None
    except httpx.HTTPStatusError as error:
        raise UserError(
            f"The server at {connection.address} refuses ({error.response.status_code}); does it belong "
            "to another federation?"
        ) from None
