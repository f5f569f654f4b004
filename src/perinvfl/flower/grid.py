"""Flower's grid, with answers taken as they come.

Flower's own waits for a site that was cut off in the middle of its answer, for as long as three minutes, and takes in
an answer of any size. Here what has come so far is kept until the rest is there or the round is over, and an answer
that is much too large, or that cannot be put together, becomes an error of that site alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from perinvfl.flower.adapter.grid import AnnouncedReply, PartsGrid
from perinvfl.flower.adapter.messages import Message, ObjectPullError, ObjectUnavailableError


@dataclass
class _Coming:
    """An answer of which some parts may still be on their way."""

    reply: AnnouncedReply
    contents: dict[str, bytes] = field(default_factory=dict)


class SitesGrid(PartsGrid):
    largest_reply = 2**26  # bytes

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._coming: dict[str, _Coming] = {}  # by the message they answer

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = set(message_ids)
        self._coming = {id: coming for id, coming in self._coming.items() if id in asked}
        waiting = asked - set(self._coming)
        if waiting:
            for reply in self.announced(sorted(waiting)):
                self._coming[reply.reply_to] = _Coming(reply)
        arrived = {id: self._complete(coming) for id, coming in self._coming.items()}
        done = {id: message for id, message in arrived.items() if message is not None}
        for id in done:
            del self._coming[id]
        return list(done.values())

    def _complete(self, coming: _Coming) -> Message | None:
        """The message, once all of it is here."""
        reply, contents = coming.reply, coming.contents
        try:
            for part in reply.parts:
                if part not in contents:
                    contents[part] = self.pull_part(part)
                    if sum(map(len, contents.values())) > self.largest_reply:
                        return reply.error(f"its answer has more than {self.largest_reply} bytes")
        except ObjectUnavailableError:
            return None
        except ObjectPullError:
            return reply.cut_off()
        self.confirm(reply)
        try:
            return reply.message(contents)
        except Exception as error:  # whatever a malformed answer may cause
            return reply.error(f"its answer cannot be put together ({type(error).__name__})")
