"""Whether the server answers: who notices that it does not, and how long a request waits for it."""

import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

__all__ = ["ANSWERS_WITHIN", "Deadline", "Reach"]

ANSWERS_WITHIN = 5.0  # seconds; a server on this machine that takes longer hangs
LOOKED_AT_EVERY = 2.0  # seconds
LONGEST_PAUSE = 5.0  # seconds between two attempts to reach the server
LAST_ATTEMPT = ANSWERS_WITHIN  # seconds that a request has where patience is at its end already
LONGEST_REQUEST = 3600.0  # seconds; sockets cannot wait for as long as a patient user may write


class Deadline:
    """An interceptor that gives every request so many seconds. Flower's own clients wait half a minute."""

    def __init__(self, seconds: float = ANSWERS_WITHIN) -> None:
        self.seconds = seconds

    def left(self) -> float:
        return self.seconds

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.extensions["timeout"] = httpx.Timeout(self.left()).as_dict()
        return call_next(context)


class Reach(Deadline):
    """Requests to a server that may be gone, or hang without being gone, are made again or wait for so many seconds.

    Takes the place of Flower's retry invoker, which asks again for ever and in silence. A request that was accepted is
    not made a second time while it waits: what a server hands out once, such as a reply, would be lost. `tell` is
    called once whenever the server begins not to answer: by the request that fails, or by a thread that looks at the
    server every two seconds, whatever the run is doing.
    """

    def __init__(self, address: str, authority: bytes, seconds: float, tell: Callable[[], None]) -> None:
        super().__init__(seconds)
        self.url, self.tell = f"https://{address}/", tell
        self.trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.trusted.load_verify_locations(cadata=authority.decode("ascii"))
        self._away_since: float | None = None
        self._noting, self._over, self._request = threading.Lock(), threading.Event(), threading.local()

    @property
    def away(self) -> bool:
        return self._away_since is not None

    def watch(self) -> None:
        """From now on until `close`."""
        threading.Thread(target=self._look, daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def invoke(self, send: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """TransportError where the server did not answer for as long as patience lasts."""
        began = self._away_since
        self._request.ends = (time.monotonic() if began is None else began) + self.seconds
        pause = 0.1
        while True:
            try:
                answer = send(*arguments, **named)
            except httpx.TransportError:
                self._noted(here=False)
                left = self._request.ends - time.monotonic()
                if left <= 0:
                    raise
                time.sleep(min(pause, left))
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self._noted(here=True)
                return answer

    def left(self) -> float:
        """Until the end of patience; of the request that this thread makes."""
        return min(max(self._request.ends - time.monotonic(), LAST_ATTEMPT), LONGEST_REQUEST)

    def _look(self) -> None:
        with httpx.Client(verify=self.trusted, timeout=ANSWERS_WITHIN, trust_env=False) as http:
            while not self._over.wait(LOOKED_AT_EVERY):
                try:
                    http.get(self.url)  # a refusal is an answer
                    self._noted(here=True)
                except httpx.TransportError:
                    self._noted(here=False)

    def _noted(self, here: bool) -> None:
        with self._noting:
            news = not here and not self.away and not self._over.is_set()
            if here:
                self._away_since = None
            elif news:
                self._away_since = time.monotonic()
        if news:
            self.tell()
