"""The numbers of an audit as people say them."""

from collections.abc import Sequence

from perinvfl.audit.audit import Audit
from perinvfl.audit.meaning import Relation
from perinvfl.audit.without import Change


def relations(found: Sequence[Relation], at: str = "in") -> str:
    """
    >>> relations([Relation("2021", 40, 1.5), Relation("2022", 40, -0.25, held_out=True), Relation("2023", 3, None)])
    '+1.50 in 2021, −0.25 in 2022 (held out)'
    """
    known = [(r, signed(r.strength, "+.2f")) for r in found if r.strength is not None]
    return ", ".join(f"{number} {at} {r.where}{' (held out)' if r.held_out else ''}" for r, number in known)


def strength_words(audit: Audit) -> str:
    """What the numbers of `relations` are."""
    if audit.task == "regression":
        return "by how many of its standard deviations a column moves when the label moves by one of its own"
    which = f'rows with {audit.label} = "{audit.classes[-1]}"' if len(audit.classes) == 2 else "rows of a class"
    return f"how far the mean of {which} lies above that of the others, in standard deviations of the column"


def score(audit: Audit, value: float) -> str:
    """A score as people say it."""
    if audit.task == "regression":
        return f"a squared error of {-100 * value:.1f} % of the label's variance in training"
    return f"an accuracy of {100 * value:.1f} %"


def in_points(change: Change, sign: bool = True) -> str:
    """
    >>> in_points(Change(0.02, 0.001, 0.039))
    '+2.0 points, 95 % interval +0.1 to +3.9'
    """
    form = "+.1f" if sign else ".1f"
    low, high = (change.low, change.high) if sign else (-change.high, -change.low)
    mean = change.mean if sign else -change.mean
    numbers = [signed(100 * value + 0.0, form) for value in (mean, low, high)]
    return f"{numbers[0]} points, 95 % interval {numbers[1]} to {numbers[2]}"


def signed(value: float, form: str = "+.1f") -> str:
    """
    >>> signed(-2.04), signed(0.5)
    ('−2.0', '+0.5')
    """
    return format(value, form).replace("-", "−")
