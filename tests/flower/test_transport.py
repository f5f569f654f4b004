"""What counts as an answer of a site: what the site says, and not what Flower's link says in its place."""

from collections.abc import Iterable
from typing import Any

import pytest

from perinvfl.flower.adapter.messages import AWAY, Error, Message, RecordDict, set_message_id, set_task_identity
from perinvfl.flower.codec import Rejected
from perinvfl.flower.transport import GridTransport

OWN_ERROR = 2  # the site's app raised an exception


class Link:
    """A link to sites 0 and 1: site 0 answers, of site 1 there is an error."""

    def __init__(self, code: int) -> None:
        self.code, self.sent = code, dict[str, Message]()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        made = []
        for message in messages:
            set_message_id(message, f"{message.metadata.dst_node_id}")
            self.sent[message.metadata.message_id] = message
            made.append(message.metadata.message_id)
        return made

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self.reply(self.sent[id]) for id in ids]

    def reply(self, message: Message) -> Message:
        if message.metadata.dst_node_id == 100:
            return Message(RecordDict(), reply_to=message)
        return Message(Error(self.code, "because"), reply_to=message)


def ask(code: int) -> tuple[dict[int, Any], list[int]]:
    transport = GridTransport(Link(code), lambda: {0: 100, 1: 101}, poll=0.01)  # type: ignore[arg-type]
    set_task_identity(run_id=1, node_id=1, task_id=1)
    transport.online()
    heard: list[int] = []
    return transport.ask("query", {0: RecordDict(), 1: RecordDict()}, 0, timeout=5.0, heard=heard.append), heard


@pytest.mark.parametrize("code", sorted(AWAY))
def test_a_site_that_the_link_did_not_hear_from_has_not_answered(code: int) -> None:
    """So whoever waits for sites asks it again; an answer, even a bad one, would be its last word."""
    answers, heard = ask(code)
    assert list(answers) == heard == [0]


def test_what_a_site_says_of_itself_is_its_answer() -> None:
    answers, heard = ask(OWN_ERROR)
    assert isinstance(answers[1], Rejected) and str(answers[1]) == "could not answer: because"
    assert heard == [0, 1]
