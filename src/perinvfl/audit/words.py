"""An audit in words, for the terminal and the page alike."""

from collections.abc import Sequence

from perinvfl.audit.audit import ALL_DROPPED, ALL_TREATED, Audit, ColumnAudit
from perinvfl.audit.habits import Habit
from perinvfl.audit.held_out import Objection, is_reversed
from perinvfl.audit.meaning import Relation
from perinvfl.audit.numbers import in_points, relations, score
from perinvfl.audit.verdicts import Reason, weakest
from perinvfl.audit.without import CONTEXTS, HELD_OUT, ROWS, SITES
from perinvfl.core.naming import counted, with_and
from perinvfl.runs.found_words import CANNOT_BE_TOLD

MOST_DOUBTS = 3  # columns named in one sentence
TESTS = {
    ROWS: "rows held out at random",
    CONTEXTS: "contexts left out in turn",
    SITES: "sites left out in turn",
    HELD_OUT: "contexts held out",
}
SHORT: dict[Reason, str] = {
    "changes between contexts": "changes its meaning between contexts",
    "changes a little": "changes a little between contexts",
    "part of a mixture": "part of a mixture that changes",
    "nothing else is left": "changes, but nothing else predicts the label",
    "changes between sites": "changes its meaning between sites",
    "changes between sites, and needed": "changes between sites, but is needed",
    "habit": "identifies the site, and little else",
    "habit and value": "a value in it identifies the site",
    "may change": "may change its meaning; not certain",
    "differs by site": "differs from site to site: style or shortcut",
    "steady and strong": "strong, no change beyond chance",
    "steady": "no change beyond chance",
    "tells nothing": "does not predict the label by itself",
}
BY_TRAINING_ROWS = (
    "(`recommended` makes the same test on the training rows of a run, which are fewer: it leaves the column out where "
    "they show it too.)"
)
TELLS_APART = "a context in which a shortcut could change, such as another year or another device"
STYLE = (
    "That may be the sites' own style, which personal models (`perinvfl`, `recommended`) let each site weigh, or a "
    "shortcut. "
)
STEADY_STYLE = (
    f"{STYLE}It is steady between the contexts named here, which clears it only if a shortcut could change between "
    f'them. What tells the two apart is {TELLS_APART}; to compare the sites instead, audit again with `--context ""`.'
)
SITES_STYLE = (
    f"{STYLE}It is kept because the column is weak, or differs little more than others do. What tells the two apart is "
    f"{TELLS_APART}."
)
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
        "out. " + BY_TRAINING_ROWS
    ),
    "part of a mixture": (
        "No single column accounts for the change, but a mixture of columns with a large part of {name} does. "
        "`recommended` looks at the training rows of a run alone; where they show it too, it takes that mixture away "
        "and keeps the rest of the column."
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
        "(`perinvfl`, `ditto`), and do not trust it alone at a new site. " + BY_TRAINING_ROWS
    ),
    "differs by site": "{name} means something else from site to site: {sites}. {style}",
    "steady and strong": (
        "{name} is strong and does not change beyond chance ({all}). Whether it is a cause or a shortcut that is "
        "equally strong everywhere cannot be seen in these data. A context in which it breaks would show it, or your "
        "own knowledge: if you know that it will not hold, leave it out yourself."
    ),
    "steady": "{name} predicts the label, with no change beyond chance: {all}.",
    "tells nothing": "By itself {name} does not predict the label beyond chance.",
}
# Where the rows held out speak against a column, which is said after it.
WHY_WITH_OBJECTION: dict[Reason, str] = {
    "steady and strong": "In training {name} is strong and does not change beyond chance ({all}).",
    "steady": "In training {name} predicts the label, with no change beyond chance: {all}.",
    "tells nothing": "In training {name} by itself does not predict the label beyond chance.",
}
WHAT_ADVICE_MEANS = {
    "drop": "Leave the column out of the model (data.ignore, or --ignore).",
    "discount": "Keep the column, but not as it is: the reasons below say what to change.",
    "keep": "Nothing that the advice rests on speaks against the column; where there is a doubt, the reasons say so.",
}


def headline(audit: Audit) -> str:
    """What to do, in one sentence."""
    drop, discount = ([column.name for column in audit.advised(advice)] for advice in ("drop", "discount"))
    if not drop and not discount:
        return _nothing(audit)
    parts = ([f"Drop {with_and(drop)}"] if drop else []) + ([f"discount {with_and(discount)}"] if discount else [])
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}. Keep the other {counted(len(audit.advised('keep')), 'column')}."


def _nothing(audit: Audit) -> str:
    differing = _differing(audit)
    if differing:
        verb = "differs" if len(differing) == 1 else "differ"
        why = f"{with_and(differing, most=3)} {verb} from site to site, by the sites' own style or by a shortcut"
        return f"Nothing is recommended to be dropped, but {why}."
    where = " in the rows that the advice rests on" if doubt(audit) else ""
    return f"Nothing is recommended to be dropped: no column changes its meaning beyond chance{where}."


def doubt(audit: Audit) -> str:
    """What the rows held out say against the advice, and what to do about it; empty where they agree."""
    against = [column for column in audit.columns if column.objection is not None]
    if not against:
        return ""
    against.sort(key=lambda column: -column.objection.gain if column.objection else 0.0)
    said = [_objection(column.name, column.objection) for column in against[:MOST_DOUBTS] if column.objection]
    more = f"; and {counted(len(against) - MOST_DOUBTS, 'column')} more" if len(against) > MOST_DOUBTS else ""
    held = with_and([context.name for context in audit.contexts if context.held_out], most=4)
    misleading = [c.name for c in against[:MOST_DOUBTS] if c.objection and c.objection.change is not None]
    ignore = " ".join(f"--ignore {_quoted(name)}" for name in misleading)
    leave = f", or leave {with_and(misleading)} out (`{ignore}`)" if misleading else ""
    return (
        f"The rows held out ({held}) speak against this: {'; '.join(said)}{more}. They were not used for the advice. "
        f"To let them count, audit again without `--held-out`{leave}; then test the choice "
        "on other rows, because these have led to it."
    )


def _objection(name: str, objection: Objection) -> str:
    if objection.change is not None:
        return f"a model without {name} does better there ({in_points(objection.change)})"
    return f"{name} does not mean there what it means elsewhere ({relations(objection.apart)})"


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'


def is_calm(audit: Audit) -> bool:
    """Nothing is to be done, and nothing is in doubt."""
    treated = audit.advised("drop") + audit.advised("discount")
    return not treated and not _differing(audit) and not doubt(audit)


def is_explained(column: ColumnAudit) -> bool:
    """Whether its reason is said in full view: of what is to be kept without doubt it is said on demand."""
    return column.verdict.advice != "keep" or column.doubtful or column.verdict.reason == "steady and strong"


def _differing(audit: Audit) -> list[str]:
    return [column.name for column in audit.columns if column.verdict.reason == "differs by site"]


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
    contexts = meaning.contexts if column.objection is None else _trained(meaning.contexts)
    begin = WHY[reason] if column.objection is None else WHY_WITH_OBJECTION.get(reason, WHY[reason])
    text = begin.format(
        name=column.name,
        all=relations(contexts) or relations(meaning.sites, "at"),
        sites=relations(meaning.sites, "at"),
        left=100 * weakest(meaning.contexts),
        turned=_turned(meaning.contexts),
        columns=len(audit.columns),
        style=STEADY_STYLE if len(_trained(meaning.contexts)) > 1 else SITES_STYLE,
    )
    if column.habit is not None:
        text += f" Besides, {_shares(column.habit)}."
    better = [test for test in (CONTEXTS, SITES) if test in column.changes and column.changes[test].better]
    if better and column.verdict.advice == "keep":
        change = in_points(column.changes[better[0]])
        text += f" A model without it does better on {TESTS[better[0]]} ({change}), which may be an accident of so few."
    return text


def held_out_reason(column: ColumnAudit) -> str:
    """What the rows held out say against keeping a column."""
    objection = column.objection
    if objection is None:
        return ""
    parts = []
    if objection.change is not None:
        change = in_points(objection.change)
        parts.append(f"a model without {column.name} does better there ({change})")
    if objection.apart:
        trained = _trained(column.meaning.contexts)
        turned = any(is_reversed(relation, trained) for relation in objection.apart)
        what = "its relation to the label is reversed there" if turned else "its strength lies outside of all others"
        known = relations(trained)
        parts.append(f"{what} ({relations(objection.apart)}; {known})")
    luck = "" if objection.certain else f" Among {objection.columns} columns that may be chance."
    return f"The rows held out speak against it, which did not count for the advice: {', and '.join(parts)}.{luck}"


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
            "Each site has one context here, so what differs between sites may be their style or a shortcut. "
            f"{TELLS_APART[0].upper()}{TELLS_APART[1:]} (`--context`), would tell the two apart; one that has nothing "
            "to do with the shortcut, such as a ward, would hide it, because sites are then no longer compared."
        )
    elif differing := _differing(audit):
        verb = "differs" if len(differing) == 1 else "differ"
        lines.append(
            f"Where contexts are named, only changes between them ({audit.context}) count against a column. "
            f"{with_and(differing)} {verb} from site to site all the same: by the sites' own style, or as a shortcut "
            f"that does not change between these contexts. What tells the two apart is {TELLS_APART}; to compare the "
            'sites instead, audit again with `--context ""`.'
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


def short(column: ColumnAudit) -> str:
    """The reason in a few words."""
    reason = SHORT[column.verdict.reason]
    if column.habit is not None and column.verdict.reason == "habit and value":
        sign = "gaps identify" if column.habit.value is None else f"{column.habit.value:g} identifies"
        reason = f"its {sign} the site"
    return reason if column.objection is None else f"{reason}; held-out rows speak against it"


def _trained(found: Sequence[Relation]) -> list[Relation]:
    return [relation for relation in found if not relation.held_out]


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
