"""The site's process: asks the server for work over TLS, does it here, and sends the answer back.

Speaks to Flower's SuperLink as a SuperNode does, in one process instead of one a message. It opens no port, and it runs
only the code that is installed at the site: what code a server would like to have run is never fetched.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx

from perinvfl.core.files import only_one
from perinvfl.errors import UserError
from perinvfl.flower.adapter.messages import (
    Context,
    Message,
    MessageType,
    Metadata,
    ObjectPullError,
    ObjectPushError,
    RecordDict,
)
from perinvfl.flower.adapter.site import AnnouncedMessage, Fleet
from perinvfl.flower.credentials import public_pem, read_private_key
from perinvfl.flower.layout import SiteFolder

HEARTBEAT = 10.0  # the least Flower admits: a site that is gone is known to be so after two of them
BEAT_EVERY, BEAT_AGAIN = 0.4 * HEARTBEAT, 0.05 * HEARTBEAT  # seconds to the next beat; after one that was lost
RETRY_MOST = 5.0
CONTEXTS = 4  # runs of which is known what was asked last
Answering = Callable[[Message, Context], Message]


class Unknown(Exception):
    """The server does not know this site as it names itself: it was restarted, or never knew its key."""


class Node:
    def __init__(
        self,
        folder: SiteFolder,
        config: dict[str, Any],
        answer: Answering,
        say: Callable[[str], None],
        poll: float = 0.5,
    ) -> None:
        self.folder, self.answer, self.say, self.poll = folder, answer, say, poll
        key = read_private_key(folder.key)
        self.public_key = public_pem(key.public_key())
        self.config = {"client": folder.client, "folder": str(folder.path), **config}
        self.fleet = Fleet.connect(folder.server, folder.authority.read_bytes(), key)
        self.patient = self.fleet.through(self._call)
        self.id = 0
        self.contexts: dict[int, Context] = {}
        self.stopping = threading.Event()

    def serve(self) -> None:
        """Take part until told to stop."""
        busy = f"Another process takes part as {self.folder.name} already; stop it first."
        with only_one(self.folder.path / "site.lock", busy):  # two would undo each other's states
            try:
                self._activate()
                threading.Thread(target=self.beat, daemon=True).start()
                self.say(f"{self.folder.name} takes part; the server is {self.folder.server}")
                self._work()
                self._leave()
            except _Stopped:
                pass  # the server is away, so there is nobody to tell
            finally:
                self.stopping.set()

    def _work(self) -> None:
        while not self.stopping.is_set():
            try:
                if not self._one_message():
                    self.stopping.wait(self.poll)
            except Unknown:
                self._activate()

    def _one_message(self) -> bool:
        announced = self.patient.announced(self.id)
        if announced is None:
            return False
        message = self._fetch(announced)
        if message is None:
            return True
        run = announced.run_id
        context = self.contexts.setdefault(
            run, Context(run_id=run, node_id=self.id, node_config=self.config, state=RecordDict(), run_config={})
        )
        for old in list(self.contexts)[:-CONTEXTS]:
            del self.contexts[old]
        began = time.perf_counter()
        reply = self.answer(message, context)
        seconds = time.perf_counter() - began
        sent = self._send(run, reply, seconds)
        what = f"{_question(message.metadata)}: {seconds:.2f} s"
        if reply.has_error():
            what += f"; refused, {reply.error.reason}"
        self.say(what + ("" if sent else "; the server no longer waits for it"))
        return True

    def _fetch(self, announced: AnnouncedMessage) -> Message | None:
        """None if its parts are gone."""
        try:
            return self.patient.fetch(self.id, announced)
        except (ObjectPullError, _Refused):
            return None

    def _send(self, run: int, reply: Message, seconds: float) -> bool:
        """Whether the server took it: a run may have ended meanwhile, or gone on without this site."""
        if reply.metadata.ttl <= 0:
            return False
        try:
            self.patient.send(self.id, run, reply, seconds)
        except (ObjectPushError, _Refused):
            return False
        return True

    # Being known to the server -------------------------------------------------------------------------------------

    def _activate(self) -> None:
        ends = time.monotonic() + 2.5 * HEARTBEAT
        while True:
            try:
                self.id = self.patient.activate(self.public_key, HEARTBEAT)
                break
            except (_Refused, Unknown) as refused:
                # The server may still believe that this site, killed a moment ago, is there.
                stranger = isinstance(refused, _Refused) and refused.status == httpx.codes.FORBIDDEN
                if stranger or (not self._leave_as_before() and time.monotonic() > ends):
                    raise UserError(
                        f"{self.folder.server} refuses {self.folder.name}: its key is not registered there. Use the "
                        "folder that `federation init` wrote together with the server's."
                    ) from None
                self.stopping.wait(0.5)
        (self.folder.path / "node.id").write_text(str(self.id))

    def _leave_as_before(self) -> bool:
        """Leave under the number this site had when it was last here; whether the server accepted that."""
        try:
            before = int((self.folder.path / "node.id").read_text())
            self.patient.deactivate(before)
        except (OSError, ValueError, _Refused, Unknown):
            return False
        return True

    def _leave(self) -> None:
        with suppress(httpx.HTTPError, ValueError):  # else the server will notice
            self.fleet.deactivate(self.id)

    def beat(self) -> None:
        """Tell the server every few seconds that this site is here."""
        pause = BEAT_EVERY
        while not self.stopping.wait(pause):
            try:
                self.fleet.beat(self.id, HEARTBEAT)
                pause = BEAT_EVERY
            except (httpx.HTTPError, ValueError):  # the loop that asks for work deals with it
                # A server that hung for a while drops connections when it is back: a beat lost then, and the next in
                # its next pause, would make this site look gone.
                pause = min(2 * pause, BEAT_EVERY) if pause < BEAT_EVERY else BEAT_AGAIN

    def _call(self, request: Callable[[Any], Any], argument: Any) -> Any:
        """Until the server answers: it may be away for as long as it likes."""
        wait, said = 0.1, False
        while True:
            try:
                return request(argument)
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status == httpx.codes.UNAUTHORIZED:
                    raise Unknown from None
                if status not in (502, 503, 504):
                    raise _Refused(status) from None
            except httpx.TransportError as error:
                if "certificate" in str(error).lower():
                    raise UserError(
                        f"{self.folder.server} does not show a certificate of this federation ({error}); check the "
                        "address, and that the server was started with the folder of the same `federation init`."
                    ) from None
            except ValueError:
                pass  # an answer that is none: something else than the server has taken its place for a moment
            if self.stopping.is_set():
                raise _Stopped
            if not said:
                self.say(f"{self.folder.server} cannot be reached; trying again")
                said = True
            self.stopping.wait(wait)
            wait = min(2 * wait, RETRY_MOST)


def _question(metadata: Metadata) -> str:
    """What was asked, with the round as the server's own output counts it: from 1."""
    kind, round = metadata.message_type, metadata.group_id
    return f"{kind}, round {int(round) + 1 if kind == MessageType.TRAIN and round.isdigit() else round}"


class _Stopped(Exception):
    """This site was told to stop while it waited for the server."""


class _Refused(Exception):
    """The server has an answer, and it is no."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
