"""The server's process: Flower's SuperLink, on one HTTPS port, with a guard in front.

A SuperLink lets whoever reaches it start runs and register keys. Here only the sites' part of it can be reached from
elsewhere; starting a run takes this machine and a secret that is new at every start. What runs is kept in memory: the
sites' keys are in the server's folder, and the rounds of a run in its records.
"""

import hmac
import ipaddress
import secrets
import signal
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import uvicorn

from perinvfl.core.stopping import on_stop
from perinvfl.errors import UserError
from perinvfl.flower.adapter.superlink import FLEET, PUBLIC_KEY_HEADER, RUNTIME, build_superlink
from perinvfl.flower.credentials import write_secret
from perinvfl.flower.layout import ServerFolder

HEADER = b"perinvfl-control"
KEY_HEADER = PUBLIC_KEY_HEADER.encode()
KEEP_ALIVE = 60  # seconds; with less, a server that hung for a while closes connections on which a request waits
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


def serve(folder: ServerFolder, host: str, port: int, started: Callable[[], None]) -> int:
    """Run until told to stop; the number of the signal that did."""
    _check_free(host, port)
    secret = secrets.token_hex(32)
    folder.secret.unlink(missing_ok=True)
    keys = {site: folder.public_key(site) for site in folder.sites}
    app = build_superlink(host, port, folder.authority, folder.certificate, folder.key, secret.encode(), keys)

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                write_secret(folder.secret, secret.encode())
                started()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Uvicorn raises the signals again inside its loop, where a second one ends in a traceback."""
            on_stop(self.stop)
            yield

        stopped_by: int = signal.SIGTERM

        def stop(self, number: int) -> None:
            self.stopped_by = number
            self.should_exit = True

    server = Server(
        uvicorn.Config(
            Guard(app, secret, frozenset(map(b64encode, keys.values()))),
            host=host,
            port=port,
            ssl_keyfile=str(folder.key),
            ssl_certfile=str(folder.certificate),
            access_log=False,
            log_level="warning",
            ws="none",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=KEEP_ALIVE,
        )
    )
    server.run()
    return server.stopped_by


def _check_free(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            raise UserError(f"The server cannot listen on {host}:{port}: {error.strerror}.") from None


def _is_loopback(client: Any) -> bool:
    return client is not None and ipaddress.ip_address(client[0]).is_loopback
