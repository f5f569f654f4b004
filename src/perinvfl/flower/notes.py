"""Notes across machines: every site takes them alone, from a model that the server sends; they stay there."""

from typing import Any

from perinvfl.errors import UserError
from perinvfl.flower import codec
from perinvfl.flower.codec import Rejected
from perinvfl.flower.evaluation import shared_model
from perinvfl.flower.server_run import ServerRun
from perinvfl.preparation.facts import join_facts


def take_notes(rounds: ServerRun, wait: bool) -> None:
    """wait: a phase is over, and the next one needs the notes of every site; else a site that is away keeps its own."""
    step = rounds.step(notes=True)
    answers = rounds.ask_everyone("query.notes", wait, shared_model(rounds, wait), taking_notes=True)
    facts: dict[int, dict[str, Any]] = {}
    for client, answer in sorted(answers.items()):
        try:
            if isinstance(answer, Rejected):
                raise answer
            facts[client] = codec.decode_facts(answer)
            rounds.books.used[client] = step
        except Rejected as rejected:
            if wait:
                raise UserError(f"{rounds.sites[client]} {rejected}") from None
            rounds.leave_out(client, rounds.done - 1, f"notes {rejected}")
    missing = [rounds.sites[client] for client in range(rounds.clients) if client not in facts]
    if wait and missing:
        raise UserError(
            f"After {rounds.settings.patience:g} s there was still no answer from {', '.join(missing)}; start them "
            "with `perinvfl federation join`, then resume with --resume."
        )
    rounds.books.noted = step
    if wait:
        rounds.books.facts = join_facts([facts[client] for client in sorted(facts)])
    else:
        rounds.save()
