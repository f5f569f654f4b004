"""Notes across machines: every site takes them alone, from a model that the server sends; they stay there."""

from typing import Any

from perinvfl.errors import UserError
from perinvfl.flower import codec
from perinvfl.flower.codec import Rejected
from perinvfl.flower.evaluation import shared_model
from perinvfl.flower.server_run import ServerRun
from perinvfl.preparation.facts import join_facts


def take_notes(rounds: ServerRun, needed: bool) -> None:
    """needed: what follows needs the notes of every site, so the server waits for them; a site that is still away
    when patience ends, or that could not take notes, is left out. Else a site that is away keeps its own."""
    step, wait = rounds.step(notes=True), rounds.settings.patience if needed else 0.0
    answers = rounds.ask_everyone("query.notes", wait, shared_model(rounds, wait), taking_notes=True)
    facts: list[dict[str, Any]] = [{} for _ in rounds.sites]
    why = {client: "no answer" for client in range(rounds.clients) if needed and client not in answers}
    for client, answer in answers.items():
        try:
            if isinstance(answer, Rejected):
                raise answer
            rounds.books.used[client] = step  # it took notes, whatever it tells of them
            facts[client] = codec.decode_facts(answer)
        except Rejected as rejected:
            why[client] = str(rejected)
    taken = [client for client in range(rounds.clients) if rounds.books.used[client] == step]
    if needed and len(taken) < rounds.settings.minimum_replies:
        raise UserError(
            f"Too few sites took notes, which the next phase needs: {_named(rounds, why)}; start them with `perinvfl "
            "federation join`, then resume with --resume."
        )
    for client, reason in sorted(why.items()):
        rounds.leave_out(client, rounds.done - 1, f"notes: {reason}")
    rounds.books.noted = step
    if needed:
        rounds.books.facts = join_facts(facts)
    else:
        rounds.save()


def _named(rounds: ServerRun, why: dict[int, str]) -> str:
    return ", ".join(f"{rounds.sites[client]} ({reason})" for client, reason in sorted(why.items()))
