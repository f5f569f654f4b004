"""The server's process: Flower's SuperLink, on one HTTPS port, with a guard in front.

A SuperLink lets whoever reaches it start runs and register keys. Here only the sites' part of it can be reached from
elsewhere; starting a run takes this machine and a secret that is new at every start. What runs is kept in memory: the
sites' keys are in the server's folder, and the rounds of a run in its records.
"""

import hmac
import ipaddress
import secrets
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    ISOLATION_MODE_PROCESS,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    TRANSPORT_TYPE_GRPC_RERE,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLWR_IN_MEMORY_DB_NAME
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig, load_control_authn_plugin
from flwr.superlink.main import create_app

from perinvfl.errors import UserError
from perinvfl.flower.credentials import write_secret
from perinvfl.flower.layout import ServerFolder

HEADER = b"perinvfl-control"
KEY_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER.encode()
FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"
LARGEST_REQUEST = 64 * 2**20  # Flower cuts arrays into pieces of 5 MB

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """Lets sites do what sites do, and this machine's owner the rest."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], secret: str, keys: frozenset[bytes]
    ) -> None:
        self.app, self.secret, self.keys = app, secret, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            status = self.refusal(scope)
            if status:
                await send({"type": "http.response.start", "status": status, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        elif scope["type"] != "lifespan":
            return
        await self.app(scope, receive, send)

    def refusal(self, scope: Scope) -> int:
        """The status of a refusal; 0 lets the request in."""
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        if not length.isdigit() and scope["method"] == "POST":
            return 411
        if length.isdigit() and int(length) > LARGEST_REQUEST:
            return 413
        if scope["path"].startswith(FLEET):  # whether the key is really the caller's is for Flower to check
            return 0 if headers.get(KEY_HEADER, b"") in self.keys else 403
        if not _is_loopback(scope.get("client")):
            return 404
        if scope["path"].startswith(RUNTIME):
            return 0  # Flower checks the task's token, and the secret where there is none yet
        known = hmac.compare_digest(headers.get(HEADER, b"").decode("latin-1"), self.secret)
        return 0 if known else 403


def serve(folder: ServerFolder, host: str, port: int, started: Callable[[], None]) -> None:
    """Run until told to stop."""
    _check_free(host, port)
    secret = secrets.token_hex(32)
    folder.secret.unlink(missing_ok=True)
    config = SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host=host,
        port=port,
        insecure=False,
        certificates=(folder.authority.read_bytes(), folder.certificate.read_bytes(), folder.key.read_bytes()),
        superexec_auth_secret=secret.encode(),
        authn_plugin=load_control_authn_plugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=str(folder.authority),
        ssl_certfile=str(folder.certificate),
        ssl_keyfile=str(folder.key),
        database=FLWR_IN_MEMORY_DB_NAME,
        isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False,
    )
    app = create_app(config, SuperLinkLifespan)
    state = app.state.linkstate_factory.state()
    for site in folder.sites:
        state.create_node(
            NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, folder.public_key(site), HEARTBEAT_DEFAULT_INTERVAL, name=site
        )

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                write_secret(folder.secret, secret.encode())
                started()

    Server(
        uvicorn.Config(
            Guard(app, secret, frozenset(b64encode(folder.public_key(site)) for site in folder.sites)),
            host=host,
            port=port,
            ssl_keyfile=str(folder.key),
            ssl_certfile=str(folder.certificate),
            access_log=False,
            log_level="warning",
            ws="none",
            timeout_graceful_shutdown=3,
        )
    ).run()


def _check_free(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            raise UserError(f"The server cannot listen on {host}:{port}: {error.strerror}.") from None


def _is_loopback(client: Any) -> bool:
    return client is not None and ipaddress.ip_address(client[0]).is_loopback
