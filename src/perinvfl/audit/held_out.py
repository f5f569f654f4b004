"""What the rows held out say against keeping a column. They do not lead to the advice, so that they can test it; but
where they speak against it, this must be said."""

from collections.abc import Sequence
from dataclasses import dataclass

from perinvfl.audit.meaning import WIDTH, Meaning, Relation
from perinvfl.audit.verdicts import MOST_CHANCE
from perinvfl.audit.without import Change
from perinvfl.learning.slope_test import SMALLEST, chance


@dataclass(frozen=True)
class Objection:
    change: Change | None  # of a model without the column, where that does better on the rows held out
    apart: tuple[Relation, ...]  # contexts held out in which the strength lies outside of those in training
    columns: int  # that were looked at

    @property
    def certain(self) -> bool:
        """Also when all columns that were looked at are counted."""
        if self.apart or self.change is None:
            return bool(self.apart)
        error = max((self.change.high - self.change.low) / (2 * WIDTH), 1e-12)
        return chance((self.change.mean / error) ** 2, 1) * self.columns < MOST_CHANCE

    @property
    def gain(self) -> float:
        return 0.0 if self.change is None else self.change.mean


def find_objection(meaning: Meaning, change: Change | None, columns: int) -> Objection | None:
    """change: of a model without the column on the rows held out; None where that was not tried.

    A column that a model needs there as well may have another strength there, but not another sign.
    """
    better = change if change is not None and change.better else None
    apart = _outside(meaning, columns)
    if change is not None and change.worse:
        trained = [relation for relation in meaning.contexts if not relation.held_out]
        apart = tuple(relation for relation in apart if is_reversed(relation, trained))
    return Objection(better, apart, columns) if better or apart else None


def is_reversed(held: Relation, trained: Sequence[Relation]) -> bool:
    """Whether it has another sign than in every training context."""
    known = [relation.strength for relation in trained if relation.strength is not None]
    return bool(known) and all((held.strength or 0.0) * strength < 0 for strength in known)


def _outside(meaning: Meaning, columns: int) -> tuple[Relation, ...]:
    """Contexts held out that lie beyond all others: not by chance, and enough to matter."""
    known = [(r, r.strength) for r in meaning.contexts if r.strength is not None]
    seen = [(strength, r.error**-2) for r, strength in known if not r.held_out]
    held = [(r, strength) for r, strength in known if r.held_out]
    if not seen or not held:
        return ()
    weight = sum(w for _, w in seen)
    usual = sum(w * strength for strength, w in seen) / weight
    least, most = min(s for s, _ in seen) - SMALLEST, max(s for s, _ in seen) + SMALLEST
    tests = columns * len(held)
    return tuple(
        r
        for r, strength in held
        if not least <= strength <= most
        and chance((strength - usual) ** 2 / (r.error**2 + 1 / weight), 1) * tests < MOST_CHANCE
    )
