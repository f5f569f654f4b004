"""What clients may tell of their notes, as plain values for the record: one entry per client."""

from typing import Any

from perinvfl.models.symmetry import views_of
from perinvfl.preparation.alignment import views_noted
from perinvfl.preparation.inferred_contexts import wrong_shares
from perinvfl.preparation.phases import Notes

VIEWS = views_of("rotations and flips")  # all there are


def facts_of(notes: Notes) -> dict[str, Any]:
    """The share of a client's samples that the reference model gets wrong, and its view if clients are aligned."""
    views = views_noted(notes)
    return wrong_shares(notes) | ({"views": list(views)} if views else {})


def are_facts(table: dict[str, Any]) -> bool:
    """Whether these can be the facts of one client; a client that tells none has {}."""
    if not table:
        return True
    reference, views = table.get("reference"), table.get("views", [])
    wrong = reference.get("wrong") if isinstance(reference, dict) else None
    return (
        set(table) <= {"reference", "views"}
        and isinstance(wrong, list)
        and len(wrong) == 1
        and all(type(share) in (int, float) and 0 <= share <= 1 for share in wrong)
        and isinstance(views, list)
        and len(views) <= 1
        and all(type(view) is int and view in VIEWS for view in views)
    )


def join_facts(each: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of all clients as one; {} where one of them tells none."""
    if not all(each):
        return {}
    found: dict[str, Any] = {"reference": {"wrong": [share for own in each for share in own["reference"]["wrong"]]}}
    views = [view for own in each for view in own.get("views", [])]
    return found | ({"views": views} if views else {})
