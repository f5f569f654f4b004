"""Questions to sites and their answers, over a Flower grid."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from perinvfl.flower.adapter.messages import AWAY, Grid, Message, RecordDict
from perinvfl.flower.codec import Rejected, size
from perinvfl.flower.grid import SitesGrid
from perinvfl.flower.limits import readable

Answer = RecordDict | Rejected
GRACE = 10.0  # a question outlives its round by this much: the clock of a site may be some seconds ahead

LOOK = 5.0  # seconds after which to see whether a site that did not answer yet is still there

ROOM = 2**20  # bytes that an answer may have besides twice the size of the question


class Transport(Protocol):
    """How a server reaches its sites, each known by its place among the clients."""

    def online(self) -> list[int]: ...

    def node(self, client: int) -> int:
        """The number under which Flower knows a site."""
        ...

    def ask(
        self,
        kind: str,
        questions: dict[int, RecordDict],
        round: int,
        timeout: float,
        heard: Callable[[int], None] | None = None,
    ) -> dict[int, Answer]:
        """The answers that came in time, or why there is none; sites that were not heard of are missing. Who is known
        to be gone is not waited for."""
        ...


@dataclass
class GridTransport:
    grid: Grid
    whereabouts: Callable[[], dict[int, int]]  # client -> Flower node, of the sites that are online
    poll: float
    nodes: dict[int, int] = field(default_factory=dict)

    def online(self) -> list[int]:
        found = self.whereabouts()
        self.nodes |= found
        return sorted(found)

    def node(self, client: int) -> int:
        return self.nodes[client]

    def ask(
        self,
        kind: str,
        questions: dict[int, RecordDict],
        round: int,
        timeout: float,
        heard: Callable[[int], None] | None = None,
    ) -> dict[int, Answer]:
        began = time.monotonic()
        waiting: dict[str, int] = {}
        if isinstance(self.grid, SitesGrid):
            self.grid.largest_reply = ROOM + 2 * max(map(size, questions.values()), default=0)
        messages = [
            Message(content, self.nodes[client], kind, ttl=timeout + GRACE, group_id=str(round))
            for client, content in questions.items()
        ]
        for sent, client in zip(self.grid.push_messages(messages), questions, strict=True):
            if sent:
                waiting[sent] = client
        answers: dict[int, Answer] = {}
        looked = began
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                client = waiting.pop(reply.metadata.reply_to_message_id)
                if reply.has_error() and reply.error.code in AWAY:
                    continue  # the link says so, not the site
                answers[client] = _answer(reply)
                if heard is not None:
                    heard(client)
            if waiting and time.monotonic() - looked >= LOOK:
                there, looked = self.online(), time.monotonic()
                waiting = {sent: client for sent, client in waiting.items() if client in there}
            waited = time.monotonic() - began
            if not waiting or waited >= timeout:
                break
            # Sites that take long are not asked after at every moment: a twentieth of the time is lost at most.
            time.sleep(min(max(self.poll, waited / 20), LOOK, timeout - waited))
        return answers


def _answer(reply: Message) -> Answer:
    if reply.has_error():
        return Rejected(f"could not answer: {readable(reply.error.reason or reply.error.code)}")
    return reply.content
