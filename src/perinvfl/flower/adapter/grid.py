"""The server's grid: Flower's HttpGrid, opened up so that a reply can be fetched part by part."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.superlink.grid import HttpGrid

from perinvfl.flower.adapter.messages import Error, Message, assemble, part_ids, set_reply_to
from perinvfl.flower.adapter.reach import Reach

__all__ = ["AnnouncedReply", "PartsGrid"]


@dataclass(frozen=True)
class AnnouncedReply:
    """A reply that the SuperLink knows of, before its parts are here."""

    id: str
    reply_to: str  # the message that it answers
    parts: tuple[str, ...]  # their ids, each once
    proto: Any

    def message(self, contents: dict[str, bytes]) -> Message:
        """The reply from the contents of its parts; any exception may come of contents that are malformed."""
        message = assemble(self.id, contents)
        # What a site says about whom it answers counts for nothing; the SuperLink's word does.
        set_reply_to(message, self.reply_to)
        return message

    def error(self, why: str) -> Message:
        """A reply that says what is wrong with the one that was sent: the site's own word, unlike those of AWAY."""
        return self._failed(ErrorCode.UNKNOWN, why)

    def cut_off(self) -> Message:
        """A reply in place of one that the site began to send and did not finish."""
        return self._failed(ErrorCode.MESSAGE_UNAVAILABLE, "its answer was cut off")

    def _failed(self, code: int, why: str) -> Message:
        metadata = message_from_proto(self.proto).metadata
        return Message(error=Error(code, why), metadata=metadata)  # type: ignore[call-overload]


class PartsGrid(HttpGrid):
    """The steps of Flower's own `pull_messages`, one method each, and a server that is waited for within bounds.

    Private in Flower: `_runtime_client`, `_retry_invoker`, `_interceptors`.
    """

    def wait_for_server(self, reach: Reach) -> None:
        """As it says where the server does not answer; HTTPStatusError where a server that was restarted refuses: it
        knows nothing of this run."""
        self._retry_invoker = reach  # type: ignore[assignment]  # of which Flower calls `invoke` alone
        self._runtime_client._interceptors += (reach,)

    def announced(self, message_ids: Iterable[str]) -> list[AnnouncedReply]:
        """The replies to these messages that were not announced before."""
        answer = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        return [
            AnnouncedReply(
                proto.metadata.message_id,
                proto.metadata.reply_to_message_id,
                tuple(dict.fromkeys(part_ids(object_tree))),
                proto,
            )
            for proto, object_tree in zip(answer.messages_list, answer.message_object_trees, strict=True)
        ]

    def pull_part(self, part: str) -> bytes:
        """One part; ObjectUnavailableError if it is still on its way, ObjectPullError if it will not come."""
        return make_pull_object_fn_protobuf(self._runtime_client.PullObject, self.node, self.run.run_id)(part)

    def confirm(self, reply: AnnouncedReply) -> None:
        """All of it is here, so the SuperLink may forget it."""
        self._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=self.run.run_id, message_object_id=reply.id)
        )
