"""How a run begins: every site tells what its data are like."""

from typing import Any

from perinvfl.errors import UserError
from perinvfl.flower import codec
from perinvfl.flower.adapter.messages import MessageType
from perinvfl.flower.assignment import NEVER, Assignment
from perinvfl.flower.codec import Rejected
from perinvfl.flower.server_run import ServerRun


def introductions(rounds: ServerRun) -> list[dict[str, Any]]:
    """What every site tells about its data; the run begins when all have been heard."""
    descriptions: dict[int, dict[str, Any]] = {}
    wait, settings, trial = rounds.patience.begin(), rounds.settings, rounds.trial
    while len(descriptions) < rounds.clients:
        missing = [client for client in range(rounds.clients) if client not in descriptions]
        online = [client for client in rounds.transport.online() if client in missing]
        if not online:
            wait.for_sites([rounds.sites[client] for client in missing])
            continue
        asked = {
            client: Assignment("none", trial.asked(), client, rounds.clients, 0, 0, 0, 0, NEVER, sources=trial.sources)
            for client in online
        }
        questions = codec.encode_assignments(asked, None, {"scores": settings.evaluate})
        answers = rounds.transport.ask(MessageType.QUERY, questions, 0, settings.round_timeout)
        for client, answer in answers.items():
            try:
                if isinstance(answer, Rejected):
                    raise answer
                descriptions[client] = codec.decode_introduction(answer, settings.evaluate)
            except Rejected as rejected:
                raise UserError(f"{rounds.sites[client]} {rejected}") from None
    return [descriptions[client] for client in range(rounds.clients)]
