"""Sites in this very process, behind the real codec and the real serialisation of Flower's messages."""

from collections.abc import Callable
from pathlib import Path

from perinvfl.flower.adapter.messages import Context, Message, RecordDict, serialized_copy, set_task_identity
from perinvfl.flower.client_app import answer
from perinvfl.flower.codec import Rejected
from perinvfl.flower.transport import Answer


class InProcess:
    """A `Transport` whose sites answer at once. `meddle` may change, drop (None) or refuse an answer on its way."""

    def __init__(
        self,
        folder: Path,
        clients: int,
        meddle: Callable[[str, int, int, Answer], Answer | None] | None = None,
        allow: str = "",
    ) -> None:
        set_task_identity(run_id=1, node_id=1, task_id=1)  # as in a ServerApp's process
        self.meddle = meddle
        self.asked: list[tuple[str, int, int]] = []
        self.away: set[int] = set()
        self.contexts = [
            Context(
                run_id=1,
                node_id=100 + client,
                node_config={"client": client, "folder": str(folder / f"site-{client}"), "allow": allow},
                state=RecordDict(),
                run_config={},
            )
            for client in range(clients)
        ]

    def online(self) -> list[int]:
        return [client for client in range(len(self.contexts)) if client not in self.away]

    def node(self, client: int) -> int:
        return 100 + client

    def ask(
        self,
        kind: str,
        questions: dict[int, RecordDict],
        round: int,
        timeout: float,
        heard: Callable[[int], None] | None = None,
    ) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        for client, content in questions.items():
            self.asked.append((kind, client, round))
            message = Message(serialized_copy(content), self.node(client), kind, group_id=str(round))
            reply = answer(message, self.contexts[client])
            given: Answer | None = (
                Rejected(f"could not answer: {reply.error.reason}")
                if reply.has_error()
                else serialized_copy(reply.content)
            )
            if self.meddle is not None and given is not None:
                given = self.meddle(kind, client, round, given)
            if given is not None:
                answers[client] = given
                if heard is not None:
                    heard(client)
        return answers
