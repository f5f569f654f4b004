"""What to do with a column: drop it, discount it, or keep it; and why."""

from dataclasses import dataclass, field
from typing import Literal

from perinvfl.audit.habits import Habit
from perinvfl.audit.meaning import Meaning, Relation
from perinvfl.audit.without import CONTEXTS, SITES, Change
from perinvfl.learning.variation import LEANED_ON

Advice = Literal["drop", "discount", "keep"]
MOST_CHANCE = 0.01  # over all columns together
STEADY = 0.85  # a column that is at its weakest so strong, compared with its strongest, has changed little

# Why a column got its advice. The words are in `words`.
Reason = Literal[
    "changes between contexts",  # beyond chance, and so strongly that a model would be misled
    "changes a little",  # beyond chance, but it is nearly as strong where it is weakest, and leaving it out costs
    "part of a mixture",  # of columns that changes; no single column accounts for it
    "nothing else is left",  # it changes, but without such columns nothing tells the label
    "changes between sites",  # with one context each; leaving it out does not cost at new sites
    "changes between sites, and needed",  # leaving it out costs at new sites
    "habit",  # it tells the site by a value, and beside that nothing beyond chance
    "habit and value",  # it tells the site by a value, and the other values tell the label
    "may change",  # by more than chance for this column alone, but among so many columns that is not rare
    "differs by site",  # steady between contexts, different between sites: personal models
    "steady and strong",  # cannot be told from a shortcut that is equally strong everywhere
    "steady",
    "tells nothing",
]


@dataclass(frozen=True)
class Verdict:
    advice: Advice
    reason: Reason


@dataclass(frozen=True)
class Evidence:
    """All that is known about one column."""

    name: str
    meaning: Meaning
    habit: Habit | None
    varies: Literal["contexts", "clients"] | None  # as `learning.variation` finds it
    mixed: bool  # it is a large part of a mixture that varies
    all_vary: bool  # all that tells the label varies
    columns: int
    changes: dict[str, Change] = field(default_factory=dict)  # by test, without it; empty where it was not tried
    hidden: dict[str, Change] = field(default_factory=dict)  # by test, with its habit hidden


def decide(known: Evidence) -> Verdict:
    meaning, needed = known.meaning, _needed(known)
    beyond_chance = meaning.contexts_chance * known.columns < MOST_CHANCE
    if known.all_vary and beyond_chance:
        return Verdict("discount", "nothing else is left")
    if known.varies is not None and not _certain(known):
        return Verdict("keep" if needed else "discount", "may change")
    if known.varies == "contexts":
        if weakest(meaning.contexts) > STEADY and needed:
            return Verdict("discount", "changes a little")
        return Verdict("drop", "changes between contexts")
    if known.mixed:
        return Verdict("discount", "part of a mixture")
    if known.varies == "clients":
        reason: Reason = "changes between sites, and needed" if needed else "changes between sites"
        return Verdict("discount" if needed else "drop", reason)
    if known.habit is not None and known.habit.tells_the_label:  # whatever it does at these few sites, by luck
        tells = meaning.overall_chance * known.columns < MOST_CHANCE
        return Verdict("discount", "habit and value") if tells else Verdict("drop", "habit")
    if meaning.sites_chance * known.columns < MOST_CHANCE:
        return Verdict("keep", "differs by site")
    if meaning.overall_chance * known.columns >= MOST_CHANCE:
        return Verdict("keep", "tells nothing")
    return Verdict("keep", "steady and strong" if abs(meaning.overall) > LEANED_ON else "steady")


def weakest(relations: list[Relation]) -> float:
    """The weakest strength as a share of the strongest; below 0 where the relation turns round."""
    known = [r.strength for r in relations if r.strength is not None and not r.held_out]
    strongest = max(known, key=abs, default=0.0)
    return min(strength / strongest for strength in known) if strongest else 1.0


def _certain(known: Evidence) -> bool:
    """Also when all columns that were looked at are counted."""
    likely = known.meaning.contexts_chance if known.varies == "contexts" else known.meaning.sites_chance
    return likely * known.columns < MOST_CHANCE


def _needed(known: Evidence) -> bool:
    """Leaving it out costs where contexts (or, with one context each, sites) were left out."""
    test = CONTEXTS if known.varies == "contexts" else SITES
    return _worse(known.changes.get(test))


def _worse(change: Change | None) -> bool:
    return change is not None and change.worse
