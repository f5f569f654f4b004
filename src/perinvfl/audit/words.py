"""An audit in words, for the terminal and the page alike."""

from collections.abc import Sequence

from perinvfl.audit.audit import ALL_DROPPED, ALL_TREATED, Audit, ColumnAudit
from perinvfl.audit.habits import Habit
from perinvfl.audit.meaning import Relation
from perinvfl.audit.verdicts import weakest
from perinvfl.audit.without import CONTEXTS, HELD_OUT, ROWS, SITES, Change
from perinvfl.core.naming import counted, with_and
from perinvfl.runs.found_words import CANNOT_BE_TOLD

TESTS = {
    ROWS: "rows held out at random",
    CONTEXTS: "contexts left out in turn",
    SITES: "sites left out in turn",
    HELD_OUT: "contexts held out",
}
SHORT = {
    "changes between contexts": "changes its meaning between contexts",
    "changes a little": "changes a little between contexts",
    "part of a mixture": "part of a mixture that changes",
    "nothing else is left": "changes, but nothing else predicts the label",
    "changes between sites": "changes its meaning between sites",
    "changes between sites, and needed": "changes between sites, but is needed",
    "habit": "identifies the site, and little else",
    "habit and value": "a value in it identifies the site",
    "may change": "may change its meaning; not certain",
    "differs by site": "differs from site to site",
    "steady and strong": "strong, no change beyond chance",
    "steady": "no change beyond chance",
    "tells nothing": "does not predict the label by itself",
}
# {name} is the column, {all} its strength in contexts (by site where there is one context), {sites} by site.
WHY = {
    "changes between contexts": "{name} does not mean the same everywhere: {all}. {turned}",
    "changes a little": (
        "{name} does not mean the same everywhere: {all}. At its weakest it still has {left:.0f} % of its strength, "
        "and a model without it does worse in contexts that it has not seen: keep it, name the contexts, and compare "
        "`perinvfl` with a model without it in a context held out."
    ),
    "may change": (
        "{name} may change its meaning: {all}. By itself that would be rare, but among {columns} columns it is not. "
        "More rows or another context would show it; until then compare a model with and without it in a context held "
        "out. (`recommended` leaves it out.)"
    ),
    "part of a mixture": (
        "No single column accounts for the change, but a mixture of columns with a large part of {name} does. "
        "`recommended` takes that mixture away and keeps the rest of the column."
    ),
    "nothing else is left": (
        "{name} changes its meaning ({all}), but without such columns a model would know nothing. Use it only where "
        "contexts are like these, and look for columns that do not change."
    ),
    "changes between sites": (
        "{name} does not mean the same at every site: {sites}. A model for new sites loses nothing that can be "
        "measured without it."
    ),
    "changes between sites, and needed": (
        "{name} does not mean the same at every site: {sites}. A model without it does worse at sites that it has not "
        "seen; but so it would with a shortcut that still holds at these. Let each site weigh it in a model of its own "
        "(`perinvfl`, `ditto`), and do not trust it alone at a new site. (`recommended` leaves it out.)"
    ),
    "differs by site": (
        "{name} means something else from site to site: {sites}. {steady}personal models (`perinvfl`, "
        "`recommended`) let each site weigh it."
    ),
    "steady and strong": (
        "{name} is strong and does not change beyond chance ({all}). Whether it is a cause or a shortcut that is "
        "equally strong everywhere cannot be seen in these data. A context in which it breaks would show it, or your "
        "own knowledge: if you know that it will not hold, leave it out yourself."
    ),
    "steady": "{name} predicts the label, with no change beyond chance: {all}.",
    "tells nothing": "By itself {name} does not predict the label beyond chance.",
}
WHAT_ADVICE_MEANS = {
    "drop": "Leave the column out of the model (data.ignore, or --ignore).",
    "discount": "Keep the column, but not as it is: the reasons below say what to change.",
    "keep": "Nothing speaks against the column in these data.",
}


def headline(audit: Audit) -> str:
    """What to do, in one sentence."""
    drop, discount = ([column.name for column in audit.advised(advice)] for advice in ("drop", "discount"))
    if not drop and not discount:
        return "Nothing is recommended to be dropped: no column changes its meaning beyond chance."
    parts = ([f"Drop {with_and(drop)}"] if drop else []) + ([f"discount {with_and(discount)}"] if discount else [])
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}. Keep the other {counted(len(audit.advised('keep')), 'column')}."


def effect(audit: Audit) -> list[str]:
    """What that does to a model, test by test."""
    lines = []
    title = ALL_DROPPED if audit.advised("drop") else ALL_TREATED
    for name, test in audit.tests.items():
        begin = f"On {TESTS[name]} ({test.rows} rows), a model with all columns has {score(audit, test.full.mean)}"
        constant = f"a constant answer {score(audit, test.constant.mean)}"
        if title in test.variants:
            which = "dropped" if title == ALL_DROPPED else "discounted"
            change = in_points(test.changes[title])
            middle = f", one without the columns to be {which} {score(audit, test.variants[title].mean)} ({change})"
        else:
            middle = ""
        lines.append(f"{begin}{middle}; {constant}.")
    return lines


def why(audit: Audit, column: ColumnAudit) -> str:
    """The reason for the advice on a column, with its numbers."""
    meaning, reason = column.meaning, column.verdict.reason
    if column.habit is not None and reason in ("habit", "habit and value"):
        return _habit(audit, column, column.habit)
    steady = "It is steady between contexts, so this is the style of a site: "
    text = WHY[reason].format(
        name=column.name,
        all=relations(meaning.contexts) or relations(meaning.sites, "at"),
        sites=relations(meaning.sites, "at"),
        left=100 * weakest(meaning.contexts),
        turned=_turned(meaning.contexts),
        columns=len(audit.columns),
        steady=steady if meaning.contexts else "Too weak to mislead a model much; ",
    )
    if column.habit is not None:
        text += f" Besides, {_shares(column.habit)}."
    better = [test for test in (CONTEXTS, SITES) if test in column.changes and column.changes[test].better]
    if better and column.verdict.advice == "keep":
        change = in_points(column.changes[better[0]])
        text += f" A model without it does better on {TESTS[better[0]]} ({change}), which may be an accident of so few."
    return text


def price(column: ColumnAudit) -> str:
    """What leaving the column out costs where contexts are like those seen."""
    rows = column.changes.get(ROWS)
    if column.verdict.advice != "drop" or rows is None or not rows.worse:
        return ""
    return (
        f"The price: on rows like those in the table a model without {column.name} does worse by "
        f"{in_points(rows, sign=False)}. That is what a shortcut looks like as long as it holds. If you are sure that "
        "it will go on holding, keep it; the data cannot show that."
    )


def limits(audit: Audit) -> list[str]:
    """What an audit cannot see."""
    lines = [f"{note}." for note in audit.notes]
    lines += [f"{name} is left aside: it {why}." for name, why in audit.left_aside.items()]
    lines.append(CANNOT_BE_TOLD)
    if audit.noticeable is not None:
        between = "contexts" if len([c for c in audit.contexts if not c.held_out]) > 1 else "sites"
        lines.append(
            f"With so many rows, a column whose strength changes by about {audit.noticeable:.2f} standard deviations "
            f"between two {between} of the usual size is noticed four times out of five; a smaller change may pass "
            "unnoticed."
        )
    if len([c for c in audit.contexts if not c.held_out]) < 2:
        lines.append(
            "Each site has one context here, so what differs between sites may be their style or a shortcut; a "
            "context, such as the year or the device (--context), would tell the two apart."
        )
    if audit.task == "regression":
        lines.append("A point is one percent of the label's variance in training; + is a smaller error.")
    lines.append(
        "The models of this audit are linear in the columns. A stronger model may rely on a column in ways that these "
        "do not show. Intervals are 95 % over rows."
    )
    if not any(c.held_out for c in audit.contexts):
        lines.append(
            "The same rows led to the advice and measured its effect, which flatters it a little; --held-out keeps "
            "contexts apart that only measure."
        )
    if audit.rows_looked_at < audit.rows:
        lines.append(f"To be done in two minutes, {audit.rows_looked_at} of {audit.rows} rows were looked at.")
    return lines


def experiment(audit: Audit) -> str:
    """What to write into an experiment file."""
    drop = ", ".join(f'"{column.name}"' for column in audit.advised("drop"))
    held = ", ".join(f'"{context.name}"' for context in audit.contexts if context.held_out)
    lines = ["[data]", 'benchmark = "file"', f'path = "{audit.file}"', f'label = "{audit.label}"']
    lines += [f'client = "{audit.client}"', f'context = "{audit.context}"']
    lines += [f"test_contexts = [{held}]"] if held else []
    lines += [f"ignore = [{drop}]"] if drop else []
    return "\n".join(lines)


def short(column: ColumnAudit) -> str:
    """The reason in a few words."""
    if column.habit is not None and column.verdict.reason == "habit and value":
        return (
            "its gaps identify the site"
            if column.habit.value is None
            else f"its {column.habit.value:g} identifies the site"
        )
    return SHORT[column.verdict.reason]


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


def _turned(found: Sequence[Relation]) -> str:
    share = weakest(list(found))
    if share < -0.1:
        return "It even reverses: a model that relies on it is misled there."
    return "A model that relies on it is misled where it is weaker than in training."


def _shares(habit: Habit) -> str:
    shown = sorted(habit.shares.items(), key=lambda item: -item[1])
    parts = [
        f"{100 * share:.0f} %{' of the rows' if not k else ''} at {site}" for k, (site, share) in enumerate(shown[:4])
    ]
    rest = f", at most {100 * shown[4][1]:.0f} % elsewhere" if len(shown) > 4 else ""
    what = "missing" if habit.value is None else f"{habit.value:g}"
    return f"it is {what} in {', '.join(parts)}{rest}"


def _habit(audit: Audit, column: ColumnAudit, habit: Habit) -> str:
    numbers = (
        f"the label is {habit.label_with:+.2f} deviations there and {habit.label_without:+.2f} elsewhere"
        if audit.task == "regression"
        else f'{100 * habit.label_with:.0f} % of those rows have {audit.label} = "{audit.classes[-1]}", '
        f"{100 * habit.label_without:.0f} % of the others"
    )
    begin = f"{column.name} identifies the site: {_shares(habit)}; {numbers}. A model can recognise the site by it."
    if column.verdict.reason == "habit":
        return f"{begin} Its other values do not predict the label beyond chance."
    fix = (
        "Fill its gaps in the file, so that no sign of them is added, or use it only at sites that have it"
        if habit.value is None
        else f"Fill in a usual value where it is {habit.value:g}; as a gap it would still identify the site"
    )
    hidden = column.hidden.get(SITES)
    cost = f" (what that does to a model at sites left out: {in_points(hidden)})" if hidden else ""
    return (
        f"{begin} Its other values do predict the label, {column.meaning.overall:+.2f} within sites, so the column is "
        f"worth keeping. {fix}{cost}."
    )
