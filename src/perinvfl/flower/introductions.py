"""How a run begins: every site tells what its data are like."""

from collections.abc import Callable
from typing import Any, TypeVar

from perinvfl.errors import UserError
from perinvfl.flower import codec
from perinvfl.flower.adapter.messages import MessageType, RecordDict
from perinvfl.flower.assignment import NEVER, Assignment
from perinvfl.flower.codec import Rejected
from perinvfl.flower.server_run import ServerRun

T = TypeVar("T")


def introductions(rounds: ServerRun, fitted: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What every site tells about its data, once it knows what to do with its columns."""
    scores = rounds.settings.evaluate
    return ask_all(
        rounds, MessageType.QUERY, {"scores": scores}, lambda a: codec.decode_introduction(a, scores), fitted=fitted
    )


def introduction(rounds: ServerRun, client: int, **further: Any) -> Assignment:
    """A question that belongs to no run yet."""
    trial = rounds.trial
    return Assignment(
        "none", trial.asked(), client, rounds.clients, 0, 0, 0, 0, NEVER, sources=trial.sources, **further
    )


def ask_all(
    rounds: ServerRun, kind: str, extra: dict[str, Any], decode: Callable[[RecordDict], T], **further: Any
) -> list[T]:
    """What every site answers; the run begins when all have been heard."""
    heard: dict[int, T] = {}
    wait, settings = rounds.patience.begin(), rounds.settings
    while len(heard) < rounds.clients:
        missing = [client for client in range(rounds.clients) if client not in heard]
        online = [client for client in rounds.transport.online() if client in missing]
        if not online:
            wait.for_sites([rounds.sites[client] for client in missing])
            continue
        asked = {client: introduction(rounds, client, **further) for client in online}
        questions = codec.encode_assignments(asked, None, extra)
        answers = rounds.transport.ask(kind, questions, 0, settings.round_timeout)
        if not answers:
            wait.for_sites([rounds.sites[client] for client in online])
        for client, answer in answers.items():
            try:
                if isinstance(answer, Rejected):
                    raise answer
                heard[client] = decode(answer)
            except Rejected as rejected:
                raise UserError(f"{rounds.sites[client]} {rejected}") from None
    return [heard[client] for client in range(rounds.clients)]
