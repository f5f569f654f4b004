"""The diagnosis in plain sentences: one per measure, each with its number."""

from collections import Counter
from typing import TYPE_CHECKING

from perinvfl.data.federation import Task

if TYPE_CHECKING:
    from perinvfl.diagnose.diagnosis import ClientDiagnosis, Context, Hint, Shift

NEARLY_SAME = 1.25  # ratio of risks up to which contexts are called alike
AT_RANDOM = "rows held out at random from its training contexts"


def say(client: "ClientDiagnosis", task: Task) -> dict[str, str]:
    """A sentence for each measure, by name."""
    sentences = {
        "risk": _risk(client, task),
        "calibration": _calibration(client, task),
        "invariance": _invariance(client),
        "agreement": _agreement(client, task),
        "shortcut": _shortcut(client),
        "shift": _shift(client, task),
    }
    if client.hint is not None:
        sentences["hint"] = _hint(client.hint)
    return {name: sentence for name, sentence in sentences.items() if sentence}


def summarise(clients: "list[ClientDiagnosis]") -> list[str]:
    """What stands out over all clients."""
    count = Counter(column.name for client in clients for column in client.shortcuts)
    lines = [f"Shortcut column: {name}, at {times} of {len(clients)} clients." for name, times in count.most_common()]
    if not lines and any(client.columns for client in clients):
        lines.append("No shortcut column was found: no model relies on a column that changes its meaning.")
    alone = [client.client for client in clients if client.gap_seen is None]
    if alone:
        listed = ", ".join(alone[:5]) + (", ..." if len(alone) > 5 else "")
        lines.append(f"{len(alone)} of {len(clients)} clients have one training context ({listed}).")
    gaps = {client.client: client.gap for client in clients if client.gap is not None}
    if gaps:
        most = max(gaps, key=lambda name: gaps[name])
        random = any(context.familiar for client in clients for context in client.contexts)
        between = "contexts, rows held out at random included," if random else "contexts"
        lines.append(f"The risk differs most between {between} at {most} (by {gaps[most]:.3f}).")
    return lines


def _where(context: "Context") -> str:
    return f"on {AT_RANDOM}" if context.familiar else f"in {context.name}"


def _risk(client: "ClientDiagnosis", task: Task) -> str:
    worst = max(client.contexts, key=lambda context: context.risk)
    best = min(client.contexts, key=lambda context: context.risk)
    where = "held out of training" if client.held_out else "it was trained on"
    measured = f"The numbers for training contexts come from data {where}."
    if worst is best:
        return f"Its risk is {worst.risk:.3f} ({_score(worst.score, task)}). {measured}"
    ratio = worst.risk / best.risk if best.risk > 0 else float("inf")
    if ratio <= NEARLY_SAME:
        return f"Its risk is much the same everywhere, {best.risk:.3f} to {worst.risk:.3f}. {measured}"
    held = "" if worst.seen or worst.familiar else ", a context it never trained on"
    return (
        f"Its risk is {ratio:.1f} times as large {_where(worst)}{held} ({worst.risk:.3f}, "
        f"{_score(worst.score, task)}) as {_where(best)} ({best.risk:.3f}, {_score(best.score, task)}). {measured}"
    )


def _calibration(client: "ClientDiagnosis", task: Task) -> str:
    worst = max(client.contexts, key=lambda context: context.calibration)
    if task == "regression":
        place = _where(worst)
        return (
            f"{place[0].upper()}{place[1:]} a factor on its predictions would help: the best one is "
            f"{worst.calibration:.2f} off 1."
        )
    way = "surer than it should be" if worst.overconfidence > 0 else "less sure than it could be"
    if worst.calibration < 0.05:
        return f"Its confidence can be trusted: off by at most {100 * worst.calibration:.0f} points (expected error)."
    return f"Its confidence is off by {100 * worst.calibration:.0f} points {_where(worst)}, where it is {way}."


def _invariance(client: "ClientDiagnosis") -> str:
    sentence = ""
    if client.gap_seen is None:
        (only,) = [context.name for context in client.contexts if context.seen]
        sentence = f"It has one training context ({only}): nothing can be compared within its own training data."
    else:
        sentence = (
            f"Over its own training contexts the risk differs by {client.gap_seen:.3f}, "
            f"with an invariance penalty of {client.penalty:.4f} (0 is invariant)."
        )
    shifted = any(not context.seen and not context.familiar for context in client.contexts)
    random = any(context.familiar for context in client.contexts)
    added = ["the test contexts"] * shifted + ["the rows held out at random"] * random
    if client.gap is not None and added:
        sentence += f" With {' and '.join(added)} it differs by {client.gap:.3f}."
    return sentence


def _agreement(client: "ClientDiagnosis", task: Task) -> str:
    if not client.personal:
        return "It predicts with the model all clients share."
    if client.agreement is None:
        return "There is no global model to compare with."
    if task == "regression":
        return f"Its predictions and those of the global model have a correlation of {client.agreement:.2f}."
    return f"It answers as the global model does in {100 * client.agreement:.0f} % of the cases."


def _shortcut(client: "ClientDiagnosis") -> str:
    if not client.columns:
        return ""
    if not client.shortcuts:
        return "It relies on no column whose relation to the label differs from context to context."
    sentences, where = [], {context.name: _where(context) for context in client.contexts}
    for column in client.shortcuts:
        listed = ", ".join(f"{value:+.2f} {where[context]}" for context, value in column.relation.items())
        label = f"class {column.of_class}" if column.of_class else "the label"
        sentences.append(
            f"It relies on {column.name} (of what is lost when columns are shuffled one by one, "
            f"{100 * column.share:.0f} % is lost with this one), whose correlation with {label} changes: {listed}."
        )
    return " ".join(sentences)


def _shift(client: "ClientDiagnosis", task: Task) -> str:
    return " ".join(_one_shift(shift, task) for shift in client.shifts)


def _one_shift(shift: "Shift", task: Task) -> str:
    begin = {
        "contexts": "In contexts that differ twice as much from their mean",
        "spectrum": f"By {shift.assumed}",
        "columns": f"With {shift.assumed}",
    }[shift.way]
    which = "now" if shift.way == "columns" else "where it is worst now"
    return f"{begin}, it would reach {_score(shift.then, task)} instead of {_score(shift.now, task)} {which}."


def _hint(hint: "Hint") -> str:
    sentence = (
        f"Hint only: the reference model gets {100 * hint.share_wrong:.0f} % of its samples wrong, "
        f"and its own model gets {100 * hint.also_wrong:.0f} % of those wrong too."
    )
    if hint.column is not None:
        sentence += (
            f" Among the right ones {hint.column} has a correlation of {hint.right:+.2f} with the label, among the "
            f"wrong ones {hint.wrong:+.2f}; any column that a model relies on shows this, a shortcut or not."
        )
    return sentence


def _score(score: float, task: Task) -> str:
    return f"error {score:.3g}" if task == "regression" else f"{100 * score:.0f} % correct"
