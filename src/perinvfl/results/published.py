"""The table of published records under a rule and a score, of one search or of several. Never trains."""

from typing import get_args

from perinvfl.errors import UserError
from perinvfl.learning.groups import Score
from perinvfl.results.search_records import SearchRecords, default_rule
from perinvfl.results.table import Table, published_table, several_tables

SCORES: tuple[Score, ...] = get_args(Score)


def default_score(published: dict[str, SearchRecords]) -> Score:
    """Where several tables are shown at once, those with rare classes show class-balanced accuracy."""
    return "balanced" if len(published) > 1 else "accuracy"


def table_of_published(name: str, published: dict[str, SearchRecords], rule: str = "", score: str = "") -> Table:
    """By default under the rule that the table is about."""
    shown = score_named(score or default_score(published))
    rule = rule or default_rule(*published.values())
    if len(published) > 1:
        return several_tables(name, published, rule, shown)
    return published_table(next(iter(published.values())), rule, shown)


def score_named(name: str) -> Score:
    for score in SCORES:
        if score == name:
            return score
    raise UserError(f"--score {name}: a published table holds no predictions; it has {', '.join(SCORES)}.")
