"""A site's process: the Fleet API, as Flower's SuperNode speaks it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_objects, push_objects
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from perinvfl.flower.adapter.messages import Message, assemble, part_ids, set_message_id

__all__ = ["AnnouncedMessage", "Call", "Fleet"]

Call = Callable[[Callable[[Any], Any], Any], Any]  # (request to the server, its argument) -> the answer


def _at_once(request: Callable[[Any], Any], argument: Any) -> Any:
    return request(argument)


class AnnouncedMessage(NamedTuple):
    """A message that waits for a site, before its parts are here."""

    run_id: int
    object_tree: Any


@dataclass(frozen=True)
class Fleet:
    """The SuperLink as a site sees it; `node` is the number that `activate` gave."""

    http: FleetHttpClient
    call: Call = _at_once

    @staticmethod
    def connect(address: str, authority: bytes, key: EllipticCurvePrivateKey) -> "Fleet":
        """authority: the certificate to trust; key: signs every request."""
        return Fleet(
            FleetHttpClient.from_server_address(
                address,
                insecure=False,
                root_certificates=authority,
                interceptors=[
                    RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                    NodeAuthHttpInterceptor(key, key.public_key()),
                ],
            )
        )

    def through(self, call: Call) -> "Fleet":
        """The same, with every single request made by `call`, which may try again."""
        return replace(self, call=call)

    def activate(self, public_key: bytes, interval: float) -> int:
        """The number of this site from now on; interval: seconds within which it will send a heartbeat."""
        request = ActivateNodeRequest(public_key=public_key, heartbeat_interval=interval)
        return self.call(self.http.ActivateNode, request).node_id

    def deactivate(self, node: int) -> None:
        self.call(self.http.DeactivateNode, DeactivateNodeRequest(node_id=node))

    def beat(self, node: int, interval: float) -> None:
        request = SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=interval)
        self.call(self.http.SendNodeHeartbeat, request)

    def announced(self, node: int) -> AnnouncedMessage | None:
        """The message that waits for this site, if there is one."""
        received = self.call(self.http.PullMessages, PullMessagesRequest(node=Node(node_id=node)))
        if not received.messages_list:
            return None
        return AnnouncedMessage(received.messages_list[0].metadata.run_id, received.message_object_trees[0])

    def fetch(self, node: int, announced: AnnouncedMessage) -> Message:
        """The message, once all its parts are here; ObjectPullError if they do not come."""
        run_id, object_tree = announced
        pull = make_pull_object_fn_protobuf(
            lambda request: self.call(self.http.PullObject, request), Node(node_id=node), run_id
        )
        confirm = make_confirm_message_received_fn_protobuf(
            lambda request: self.call(self.http.ConfirmMessageReceived, request), Node(node_id=node), run_id
        )
        parts = pull_objects(
            part_ids(object_tree), pull_object_fn=pull, max_time=60.0, initial_backoff=0.05, backoff_cap=1.0
        )
        confirm(object_tree.object_id)
        return assemble(object_tree.object_id, parts)

    def send(self, node: int, run_id: int, reply: Message, seconds: float) -> None:
        """The answer to a message, and how long it took; ObjectPushError if the server takes no part of it."""
        set_message_id(reply, reply.object_id)
        with no_object_id_recompute():
            request = PushMessagesRequest(
                node=Node(node_id=node),
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[seconds],
            )
            taken = self.call(self.http.PushMessages, request)
            push = make_push_object_fn_protobuf(
                lambda request: self.call(self.http.PushObject, request), Node(node_id=node), run_id, taken.session_id
            )
            push_objects(get_all_nested_objects(reply), push, object_ids_to_push=set(taken.objects_to_push))
