"""Evaluation across machines: sites measure the models on their own test cases and tell numbers."""

import math
from typing import Any

import torch

from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.engine import draws
from perinvfl.errors import UserError
from perinvfl.flower import codec
from perinvfl.flower.adapter.messages import MessageType
from perinvfl.flower.codec import Rejected
from perinvfl.flower.server_run import ServerRun
from perinvfl.models import mix_statistics
from perinvfl.runs import events
from perinvfl.runs.group import balanced_of
from perinvfl.scoring.site_scores import join_sites, wrong_with


def is_asked_for(rounds: ServerRun) -> bool:
    return rounds.settings.evaluate and bool(rounds.agreement.tests)


def evaluate(rounds: ServerRun, last: bool) -> None:
    """The last evaluation waits a while for sites that are away: the table shows it."""
    kinds = [kind for kind in ("personal", "global") if getattr(rounds.phase.algorithm, f"has_{kind}")]
    wait = rounds.settings.last_patience if last else 0.0
    scores = _ask_scores(rounds, kinds, wait)
    if not scores:
        if last:
            raise UserError(
                f"No site answered the last evaluation within {wait:g} s; start the sites with `perinvfl federation "
                "join`, then resume with --resume."
            )
        return
    measured = _by_case(rounds, scores)
    risks = [rounds.books.risks[client] for client in rounds.participants(rounds.done - 1)]
    missing = [rounds.sites[client] for client in range(rounds.clients) if client not in scores]
    further: dict[str, Any] = {"absent": missing} if missing else balanced(rounds, measured, kinds[0])
    rounds.writer.write(
        **events.evaluation_event(rounds.done, rounds.seconds, risks, measured, **further, **rounds.totals())
    )
    known = [score for case in rounds.agreement.spectrum for score in measured[kinds[0]][case] if score == score]
    mean = sum(known) / len(known) if known else None
    rounds.progress.evaluated([rounds.trial], rounds.done, mean, rounds.agreement.task)


def _ask_scores(rounds: ServerRun, kinds: list[str], wait: float) -> dict[int, dict[str, Any]]:
    """What each site measured; who tells what cannot be is left out."""
    cases, counts = list(rounds.agreement.cases), rounds.agreement.groups.get("counts", {})
    largest = codec.largest_score(rounds.agreement.task)
    scores: dict[int, dict[str, Any]] = {}
    answers = rounds.ask_everyone(MessageType.EVALUATE, wait, shared_model(rounds, wait))
    for client, answer in sorted(answers.items()):
        try:
            if isinstance(answer, Rejected):
                raise answer
            own = {case: rows[client] for case, rows in counts.items()}
            scores[client] = codec.decode_scores(answer, kinds, cases, own, largest)
        except Rejected as rejected:
            rounds.leave_out(client, rounds.done - 1, f"evaluation {rejected}")
    return scores


def _by_case(rounds: ServerRun, scores: dict[int, dict[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """By kind of model and test case, one entry per site: NaN, or no count at all, where a site is missing."""
    table = next(iter(scores.values()))
    return {
        kind: {
            case: [
                scores[client][kind][case] if client in scores else [] if kind.endswith("groups") else math.nan
                for client in range(rounds.clients)
            ]
            for case in table[kind]
        }
        for kind in table
    }


def collect_scores(rounds: ServerRun) -> None:
    """At the end: what each site tells of how good the models are there, put on record."""
    kinds = [kind for kind in ("personal", "global") if getattr(rounds.phase.algorithm, f"has_{kind}")]
    agreement = rounds.agreement
    told: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
    wait = rounds.settings.last_patience
    for client, answer in sorted(rounds.ask_everyone("query.scores", wait, shared_model(rounds, wait)).items()):
        try:
            if isinstance(answer, Rejected):
                raise answer
            own = codec.decode_table(answer)
            if set(own) != set(kinds):
                raise Rejected("does not send the scores of each model")
            for kind in kinds:
                wrong = wrong_with(own[kind], agreement.tests, agreement.task, max(2, agreement.outputs))
                if wrong:
                    raise Rejected(wrong)
            for kind in kinds:
                told[kind][rounds.sites[client]] = own[kind]
        except Rejected as rejected:
            rounds.leave_out(client, rounds.done - 1, f"scores: {rejected}")
    models = {
        kind: join_sites(told[kind], kind, rounds.done, agreement.task, rounds.class_names, agreement.outputs)
        for kind in kinds
    }
    if any(found["cases"] for found in models.values()):
        rounds.writer.write(**events.scores_event(rounds.done, models))


def balanced(rounds: ServerRun, measured: dict[str, Any], lead: str) -> dict[str, Any]:
    """Class-balanced accuracy, as the simulator records it."""
    return balanced_of({"groups": rounds.agreement.groups}, measured.get(f"{lead} groups", {}))


def shared_model(rounds: ServerRun, wait: float) -> Params:
    """The global model as it predicts: where it normalises by its batch, with statistics mixed from all sites.

    Where no model is the same for all sites, what they share of theirs; each measures its own statistics.
    """
    nu, agreement = rounds.server.in_use, rounds.agreement
    model = rounds.model()
    if model.statistics is None or not rounds.phase.algorithm.has_global:
        return nu
    with torch.no_grad():
        like = model.statistics(nu, torch.zeros(2, *agreement.shape))
    by_samples = rounds.phase.training.weights == "samples"
    measured: dict[int, tuple[Params, int]] = {}
    for client, answer in sorted(rounds.ask_participants("query.statistics", wait, nu).items()):
        try:
            if isinstance(answer, Rejected):
                raise answer
            measured[client] = codec.decode_statistics(answer, like, by_samples)
        except Rejected as rejected:
            rounds.leave_out(client, rounds.done - 1, f"statistics {rejected}")
    if not measured:
        return nu
    sizes = torch.tensor([samples for _, samples in measured.values()])
    stacked = tree.map(lambda leaf: leaf[None], tree.stack([statistics for statistics, _ in measured.values()]))
    mixed = mix_statistics(stacked, draws.shares(sizes, rounds.phase.training.weights)[None])  # [1, n, ...] -> [1, ...]
    return nu | tree.map(lambda leaf: leaf[0], mixed)
