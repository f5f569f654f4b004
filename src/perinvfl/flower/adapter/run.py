"""A run's process: the Control API starts and stops runs, the Runtime API serves the ServerApp of one."""

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
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

from perinvfl.flower.adapter.grid import PartsGrid
from perinvfl.flower.adapter.messages import set_task_identity
from perinvfl.flower.adapter.reach import Deadline

__all__ = ["Control", "Heartbeat", "Runtime"]


class _Headers:
    """An interceptor that adds headers to every request."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers.update(self.headers)
        return call_next(context)


@dataclass(frozen=True)
class Control:
    """The SuperLink as the owner of its machine sees it."""

    http: ControlHttpClient

    @staticmethod
    def connect(address: str, authority: bytes, headers: Mapping[str, str]) -> "Control":
        """authority: the certificate to trust; headers: sent with every request."""
        return Control(
            ControlHttpClient.from_server_address(
                address, False, authority, [RuntimeVersionHttpInterceptor("flwr"), _Headers(headers), Deadline()]
            )
        )

    def nodes(self) -> list[Any]:
        """What the SuperLink knows of each node: `node_id`, `public_key`, `status`, ..."""
        return list(self.http.ListNodes(ListNodesRequest()).nodes_info)

    def start_run(self, manifest: str) -> int:
        """The number of a new run, whose app is nothing but this pyproject.toml."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Flower matches files in a way that pathspec drops
            content, _ = build_fab_from_files({"pyproject.toml": manifest.encode()})
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        return self.http.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id

    def stop_run(self, run_id: int) -> None:
        self.http.StopRun(StopRunRequest(run_id=run_id))


@dataclass(frozen=True)
class Runtime:
    """The SuperLink as the process of a ServerApp sees it."""

    http: RuntimeHttpClient

    @staticmethod
    def connect(address: str, authority: bytes, secret: bytes, token: str | None = None) -> "Runtime":
        """With the token of a task, or else with the SuperLink's secret, which is good for `acquire` alone."""
        proof: Any = (
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"])
            if token is None
            else RuntimeTokenHttpInterceptor(token)
        )
        interceptors = [RuntimeVersionHttpInterceptor("flwr-serverapp"), proof, Deadline()]
        return Runtime(RuntimeHttpClient.from_server_address(address, False, authority, interceptors))

    def acquire(self) -> tuple[str, int]:
        """The token and the run of a ServerApp that waits for its process; an empty token if none does."""
        taken = self.http.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        return taken.token, taken.task.run_id

    def begin(self, grid: PartsGrid) -> None:
        """Be the task that was acquired: this process sends messages as that, and the grid belongs to its run."""
        given = self.http.PullTaskInput(PullTaskInputRequest())
        set_task_identity(given.run.run_id, given.context.node_id, given.task_id)
        grid.set_run(run_from_proto(given.run))

    def end(self, failure: str | None) -> None:
        """The task is over, and so is its run; failure: why it did not come to its end, None if it did."""
        status = SubStatus.COMPLETED if failure is None else SubStatus.FAILED
        self.http.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=failure or ""))


class Heartbeat:
    """Flower's heartbeat of a task. Private in Flower: `_stop_event`."""

    def __init__(self, runtime: Runtime) -> None:
        self.beat = make_task_heartbeat_fn_http(runtime.http)
        self.sender = HeartbeatSender(self._beat)

    def start(self) -> None:
        self.sender.start()

    def stop(self) -> None:
        """At once: Flower's own `stop` waits for a beat that is under way, to a server that may be gone."""
        self.sender._stop_event.set()

    def _beat(self) -> bool:
        """Silent where the server was restarted: the run itself meets that, and says so."""
        try:
            return self.beat()
        except httpx.HTTPStatusError:
            return True
