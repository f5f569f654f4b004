"""Flower's grid, with answers taken as they come.

Flower's own waits for a site that was cut off in the middle of its answer, for as long as three minutes, and takes in
an answer of any size. Here what has come so far is kept until the rest is there or the round is over, and an answer
that is much too large, or that cannot be put together, becomes an error of that site alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid import HttpGrid


@dataclass
class _Coming:
    """An answer of which some parts may still be on their way."""

    proto: Any
    parts: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)


class SitesGrid(HttpGrid):
    largest_reply = 2**26  # bytes

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._coming: dict[str, _Coming] = {}  # by the message they answer

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = set(message_ids)
        self._coming = {id: coming for id, coming in self._coming.items() if id in asked}
        waiting = asked - set(self._coming)
        if waiting:
            answer = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=sorted(waiting)))
            for proto, object_tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                parts = list(dict.fromkeys(part.object_id for part in iterate_object_tree(object_tree)))
                self._coming[proto.metadata.reply_to_message_id] = _Coming(proto, parts)
        arrived = {id: self._complete(coming) for id, coming in self._coming.items()}
        done = {id: message for id, message in arrived.items() if message is not None}
        for id in done:
            del self._coming[id]
        return list(done.values())

    def _complete(self, coming: _Coming) -> Message | None:
        """The message, once all of it is here."""
        pull = make_pull_object_fn_protobuf(self._runtime_client.PullObject, self.node, self.run.run_id)
        try:
            for part in coming.parts:
                if part not in coming.contents:
                    coming.contents[part] = pull(part)
                    if sum(map(len, coming.contents.values())) > self.largest_reply:
                        return self._instead(coming, f"has more than {self.largest_reply} bytes")
        except ObjectUnavailableError:
            return None
        except ObjectPullError:
            return self._instead(coming, "was cut off")
        id = coming.proto.metadata.message_id
        self._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=self.run.run_id, message_object_id=id)
        )
        try:
            message = cast(Message, inflate_object_from_contents(id, coming.contents))
            message.metadata.__dict__["_message_id"] = id
            # What a site says about whom it answers counts for nothing; the SuperLink's word does.
            message.metadata.__dict__["_reply_to_message_id"] = coming.proto.metadata.reply_to_message_id
        except Exception as error:  # whatever a malformed answer may cause
            return self._instead(coming, f"cannot be put together ({type(error).__name__})")
        return message

    def _instead(self, coming: _Coming, why: str) -> Message:
        metadata = message_from_proto(coming.proto).metadata
        return Message(error=Error(ErrorCode.MESSAGE_UNAVAILABLE, f"its answer {why}"), metadata=metadata)  # type: ignore[call-overload]
