"""Records, messages and the two apps, which are Flower's public face, and what Flower keeps inside a message."""

from typing import Any, cast

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.task_identity import TaskIdentity

__all__ = [
    "AWAY",
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Error",
    "Grid",
    "Message",
    "MessageType",
    "Metadata",
    "MetricRecord",
    "ObjectPullError",
    "ObjectPushError",
    "ObjectUnavailableError",
    "RecordDict",
    "ServerApp",
    "assemble",
    "part_ids",
    "serialized_copy",
    "set_message_id",
    "set_reply_to",
    "set_task_identity",
]

# Errors in place of an answer that Flower's link reports by itself, of a site that it did not hear from.
AWAY = frozenset({ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE})


def set_task_identity(run_id: int, node_id: int, task_id: int) -> None:
    """Whom this process sends messages as; Flower sets it where it starts an app itself."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, node_id, task_id


def set_message_id(message: Message, id: str) -> None:
    """Flower's metadata can be read only, and Flower itself sets the id of a message this way."""
    message.metadata.__dict__["_message_id"] = id


def set_reply_to(message: Message, id: str) -> None:
    """The message that this one answers; read only like its id."""
    message.metadata.__dict__["_reply_to_message_id"] = id


def part_ids(object_tree: Any) -> list[str]:
    """The ids of the parts that a message travels in, in the order of its tree; a part may be in it twice."""
    return [part.object_id for part in iterate_object_tree(object_tree)]


def assemble(id: str, contents: dict[str, bytes]) -> Message:
    """The message of this id from the contents of its parts; any exception may come of contents that are malformed."""
    message = cast(Message, inflate_object_from_contents(id, contents))
    set_message_id(message, id)
    return message


def serialized_copy(content: RecordDict) -> RecordDict:
    """What the other side reads of a message's content."""
    return recorddict_from_proto(recorddict_to_proto(content))
