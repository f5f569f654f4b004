"""Before a run on sites' own tables: what columns there are, and their medians, levels, means and scales, from sums."""

from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms.aggregation import Mean
from perinvfl.core.naming import LONGEST_NAME
from perinvfl.core.tree import Params
from perinvfl.data.own.fitted import Fitted, with_missing_values
from perinvfl.data.own.sites import SitesSettings
from perinvfl.data.own.sums import Offer, Plan, agree_columns, fit_sums, read_offers, with_bounds
from perinvfl.errors import UserError
from perinvfl.flower import codec, limits
from perinvfl.flower.adapter.messages import RecordDict
from perinvfl.flower.codec import Rejected
from perinvfl.flower.gathering import Gathered, Gatherer
from perinvfl.flower.introductions import ask_all, introduction
from perinvfl.flower.secagg import TooFew
from perinvfl.flower.server_run import ServerRun
from perinvfl.flower.words import decode_sums, encode_sums


def fit_columns(rounds: ServerRun) -> tuple[Fitted, dict[str, Any]] | None:
    """What all sites are to do with their columns, and what is counted for the record; None where nothing is."""
    if not isinstance(rounds.trial.data, SitesSettings) or rounds.trial.data.mean:
        return None
    offers = ask_all(rounds, "query.columns", {}, _decode_offers)
    tables = [name for name, own in zip(rounds.sites, offers, strict=True) if own]
    if not tables:
        return None
    if len(tables) < rounds.clients:
        other = next(name for name in rounds.sites if name not in tables)
        raise UserError(f"The sites do not fit together: {tables[0]} has a table, and {other} has none.")
    if rounds.settings.private:
        raise UserError(
            f"federation.noise_multiplier = {rounds.settings.noise_multiplier:g}: means and scales of tables are "
            "summed over the sites, which noise on updates does not cover; give data.mean and data.scale."
        )
    if rounds.settings.secure_aggregation and rounds.settings.clipping_range < 1:
        raise UserError("federation.clipping_range must be at least 1 where sites sum up their tables.")
    plan = agree_columns(offers, rounds.sites)
    counts = _sum(rounds, plan)
    bounded = with_bounds(plan, counts)
    fitted, record = fit_sums(bounded, counts, _sum(rounds, bounded))
    return with_missing_values(fitted, rounds.trial.data.missing_values), record


def _decode_offers(answer: RecordDict) -> tuple[Offer, ...]:
    try:
        offers = read_offers(codec.decode_table(answer)["columns"])
    except (KeyError, TypeError, ValueError):
        raise Rejected("does not describe its columns") from None
    names, levels = [one.name for one in offers], [level for one in offers for level in one.levels]
    if not limits.are_texts(names, limits.MOST_COLUMNS):
        raise Rejected(f"has columns without a name of at most {LONGEST_NAME} characters that is its own")
    if len(levels) > limits.MOST_LEVELS or not all(limits.are_texts(list(one.levels), len(levels)) for one in offers):
        raise Rejected(
            f"has more than {limits.MOST_LEVELS} levels in its columns, or one of more than {LONGEST_NAME} characters"
        )
    return offers


def _check_words(sums: Params) -> None:
    """Whole numbers travel in words, each from 0 and below 1."""
    if any(bool(((leaf < 0) | (leaf >= 1)).any()) for leaf in sums.values()):
        raise Rejected("has sums that cannot be")


def _sum(rounds: ServerRun, plan: Plan) -> Tensor:
    """[plan.size] over all sites: a run does not begin without one of them."""
    if not plan.size:  # no column is a number
        return torch.zeros(0, dtype=torch.int64)
    nu = encode_sums(torch.zeros(plan.size, dtype=torch.int64))
    wait, number = rounds.patience.begin(), int(bool(plan.bounds))
    gatherer = Gatherer(rounds.transport, rounds.settings, "uniform", Mean(), nu, check=_check_words)
    while True:
        online = rounds.transport.online()
        gathered: Gathered | None = None
        why: dict[int, Rejected] = {}
        if len(online) == rounds.clients:
            assignments = {client: introduction(rounds, client, plan=plan.as_fields()) for client in online}
            extra = {"tell_samples": False, "risks_seen": False}
            try:
                gathered, why = gatherer.gather(
                    number, codec.encode_assignments(assignments, nu, extra), lambda _: None
                )
            except TooFew as few:
                why = few.left_out
        if gathered is not None and len(gathered.used) == rounds.clients:
            rounds.books.bytes_up += gathered.bytes_up
            return decode_sums(gathered.combined.update, rounds.clients)
        for client, rejected in why.items():
            raise UserError(f"{rounds.sites[client]} {rejected}") from None
        used = [] if gathered is None else gathered.used
        wait.for_sites([rounds.sites[client] for client in range(rounds.clients) if client not in used], again=True)
