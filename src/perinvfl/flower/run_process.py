"""A run's process: on the server's machine, tells the SuperLink that a run begins and is its ServerApp."""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, StartRunRequest, StopRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from perinvfl import __version__
from perinvfl.core.files import only_one
from perinvfl.errors import UserError
from perinvfl.flower.grid import SitesGrid
from perinvfl.flower.layout import ServerFolder
from perinvfl.flower.server_process import HEADER

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


class _Known:
    """Shows the SuperLink's guard that this process may read the server's folder."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers[HEADER.decode()] = self.secret.decode()
        return call_next(context)


@dataclass(frozen=True)
class Connection:
    """From this machine to the SuperLink on it."""

    folder: ServerFolder
    address: str
    secret: bytes
    authority: bytes

    def control(self) -> ControlHttpClient:
        return ControlHttpClient.from_server_address(
            self.address, False, self.authority, [RuntimeVersionHttpInterceptor("flwr"), _Known(self.secret)]
        )

    def runtime(self, token: str | None = None) -> RuntimeHttpClient:
        proof: Any = (
            SuperExecAuthHttpInterceptor(
                master_secret=self.secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"]
            )
            if token is None
            else RuntimeTokenHttpInterceptor(token)
        )
        return RuntimeHttpClient.from_server_address(
            self.address, False, self.authority, [RuntimeVersionHttpInterceptor("flwr-serverapp"), proof]
        )


def connect(folder: ServerFolder) -> Connection:
    try:
        secret = folder.secret.read_bytes()
    except OSError:
        raise UserError(f"The server does not run; start it with `perinvfl federation up {folder.path}`.") from None
    return Connection(folder, f"127.0.0.1:{folder.port}", secret, folder.authority.read_bytes())


def list_sites(connection: Connection) -> dict[str, Any]:
    """What the SuperLink knows of each site, by name."""
    with _explained(connection):
        nodes = connection.control().ListNodes(ListNodesRequest()).nodes_info
    by_key = {connection.folder.public_key(site): site for site in connection.folder.sites}
    return {by_key[node.public_key]: node for node in nodes if node.public_key in by_key}


@contextmanager
def running(connection: Connection) -> Iterator[SitesGrid]:
    """A grid to the sites, for as long as the run lasts."""
    with _explained(connection):
        _put_away(connection)
        fab = _bundle()
        run_id = connection.control().StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id
        token = _acquire(connection, run_id)
        grid = SitesGrid(connection.address, False, connection.authority, token=token)
        client = connection.runtime(token)
        given = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
    TaskIdentity.node_id = given.context.node_id
    grid.set_run(run_from_proto(given.run))
    heartbeat = HeartbeatSender(_beating(client))
    heartbeat.start()
    status, details = SubStatus.FAILED, "the run did not come to its end"
    try:
        with _at_work(connection.folder.running / str(run_id)), _lost(connection):
            yield grid
        status, details = SubStatus.COMPLETED, ""
    finally:
        with suppress(httpx.HTTPError):  # the SuperLink may be gone, and with it all it knew of the run
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        heartbeat._stop_event.set()
        grid.close()


@contextmanager
def _at_work(path: Path) -> Iterator[None]:
    """A file that names the run, locked while its process lives."""
    path.parent.mkdir(exist_ok=True)
    with only_one(path, f"Another process is at work on {path}."):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _put_away(connection: Connection) -> None:
    """End the runs whose process was killed: sites would wait a minute for what it can no longer send them."""
    for path in connection.folder.running.glob("*"):
        with suppress(UserError), only_one(path, "alive"):
            with suppress(httpx.HTTPStatusError):  # a server that was started anew knows nothing of it
                connection.control().StopRun(StopRunRequest(run_id=int(path.name)))
            path.unlink()


def _bundle() -> Fab:
    """A run must come with an app; ours is installed already, so this one only says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower matches its files in a way that pathspec drops
        content, _ = build_fab_from_files({"pyproject.toml": APP.encode()})
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


def _acquire(connection: Connection, run_id: int) -> str:
    """The token of this run. A run that was begun by a process that then died is put away."""
    runtime = connection.runtime()
    while True:
        taken = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        if not taken.token:
            raise UserError("The server did not accept the run; restart it with `perinvfl federation up`.")
        if taken.task.run_id == run_id:
            return taken.token
        abandoned = PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="abandoned")
        connection.runtime(taken.token).PushTaskOutput(abandoned)


def _beating(client: RuntimeHttpClient) -> Callable[[], bool]:
    """Flower's heartbeat, silent where the server was started anew: the run itself meets that, and says so."""
    beat = make_task_heartbeat_fn_http(client)

    def again() -> bool:
        try:
            return beat()
        except httpx.HTTPStatusError:
            return True

    return again


@contextmanager
def _lost(connection: Connection) -> Iterator[None]:
    """The server went away in the middle of a run."""
    try:
        yield
    except (httpx.TransportError, httpx.HTTPStatusError) as error:
        away = isinstance(error, httpx.TransportError)
        raise UserError(
            f"The server at {connection.address} {'does not answer any more' if away else 'was started anew'}; "
            f"{f'start it with `perinvfl federation up {connection.folder.path}`, then ' if away else ''}"
            "the same command goes on with --resume."
        ) from None


@contextmanager
def _explained(connection: Connection) -> Iterator[None]:
    try:
        yield
    except httpx.TransportError:
        raise UserError(
            f"The server at {connection.address} does not answer; start it with "
            f"`perinvfl federation up {connection.folder.path}`."
        ) from None
    except httpx.HTTPStatusError as error:
        raise UserError(
            f"The server at {connection.address} refuses ({error.response.status_code}); is it of another federation?"
        ) from None
