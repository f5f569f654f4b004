"""Whether to use these models, and which: the verdict and the recommendation of a report, in sentences.

The rule: the model that is best on average over the tests; where the average of `recommended` lies within the best
one's 95 % interval, `recommended`, because it looks for shortcuts.
"""

import math
import statistics
from dataclasses import dataclass
from typing import Any

from perinvfl.core.naming import with_and
from perinvfl.runs.fit import fit_on_record
from perinvfl.runs.records import Run

Section = dict[str, Any]
Method = dict[str, Any]

SAME = "same contexts"  # the test on rows held out at random, as `data.own.files` names it (which needs torch)
HELD_OUT = ". Decide by a context that was held out, such as a later year."
HOLD_OUT = (
    "Before you use it, hold out a context, such as a later year (`test_contexts`); where the table has no column for "
    "it, add one. "
)


@dataclass(frozen=True)
class Advice:
    """Which model to use, and what it was compared with."""

    best: Method  # on average over the tests
    chosen: Method
    span: tuple[float, float] | None  # the best one's 95 % interval, where it is known
    alike: tuple[Method, ...]  # better than a constant and within that interval, and neither the best nor chosen


def advise(section: Section, methods: list[Method]) -> Advice:
    def rank(method: Method) -> float:
        value = average(section, method["cases"])
        return math.inf if value is None else -value if section["larger_is_better"] else value

    best, *others = sorted(methods, key=rank)
    constant, span = average(section, section["constant"]["cases"]), _span(section, best)
    alike = []
    for method in others:
        value = average(section, method["cases"])
        if span and value is not None and span[0] <= value <= span[1] and _better(section, value, constant):
            alike.append(method)
    chosen = next((method for method in (best, *alike) if method["algorithm"] == "recommended"), best)
    return Advice(best, chosen, span, tuple(method for method in alike if method is not chosen))


def verdict(section: Section, runs: dict[str, list[Run]]) -> dict[str, str] | None:
    """Whether these models are of use at all, as the first line of the page, and what a constant answer is.

    None where there is nothing to warn of.
    """
    found = _verdict(section, runs)
    return {**found, "constant": _constant_words(section)} if found else None


def _verdict(section: Section, runs: dict[str, list[Run]]) -> dict[str, str] | None:
    methods = [method for method in section["views"][0]["methods"] if not method["reference"]]
    if not methods:
        return None
    constant = average(section, section["constant"]["cases"])
    fits = [fit_on_record(run) for method in methods for run in runs.get(method["name"], [])]
    where = _where(section)
    if not any(_better(section, average(section, method["cases"]), constant) for method in methods):
        return {
            "kind": "bad",
            "text": f"Do not use these models: {where}, none of them does better than a constant answer, which looks "
            f"at nothing ({_number(section, constant)}).",
        }
    if fits and all(fit is not None and not fit.better for fit in fits):
        text = "Do not use these models: they learned nothing, not even on the rows they were trained on."
        return {"kind": "bad", "text": text}
    if not section["own"]:
        return None
    chosen = advise(section, methods).chosen
    name, span, only_random = chosen["name"], _span(section, chosen), section["spectrum"] == [SAME]
    shown = _number(section, average(section, chosen["cases"]))
    shown += f" (95 % interval {_ends(section, span)})" if span else ""
    shown += f"; a constant answer has {_number(section, constant)}."
    if span is not None and not _better(section, span[0 if section["larger_is_better"] else 1], constant):
        text = "With so few rows it is not certain that these models do better than a constant answer: "
        text += f"{where}, {name} has {shown}"
        return {
            "kind": "mixed",
            "text": f"{text} Models look better on such rows than on new ones{HELD_OUT}" if only_random else text,
        }
    if only_random:
        text = (
            "Not tested on anything new: the only test is on rows held out at random, and every model looks good there"
        )
        return {
            "kind": "mixed",
            "text": f"{text}{HELD_OUT} {name} does better there than a constant answer: it has {shown}",
        }
    return {"kind": "fine", "text": f"{name} does better than a constant answer: {where}, it has {shown}"}


def _constant_words(section: Section) -> str:
    """What a constant answer is, said where the page first compares with it."""
    client = section["words"]["client"]
    if not section["larger_is_better"]:
        return f"A constant answer gives every row of a {client} the mean label of its training rows."
    text = f"A constant answer gives every row of a {client} the label that is most common in its training rows."
    rates = [rate for client in section["constant"]["clients"] for rate in client.values() if rate is not None]
    if len(section["classes"]) == 2 and min(rates, default=100.0) < 50:
        text += (
            " Where both labels are about equally common, that can be the rarer one among the rows tested, so that it "
            "is right for less than half of them."
        )
    return text


def recommendation(section: Section, methods: list[Method], advice: Advice) -> str:
    """One recommendation, by which rule, and what speaks against taking it for more than it is."""
    constant = average(section, section["constant"]["cases"])
    chosen, name = advice.chosen, advice.chosen["name"]
    if not _better(section, average(section, chosen["cases"]), constant):
        return (
            "Use none of these models. Audit the table (`perinvfl audit`) for columns that change their meaning, and "
            "try `recommended`, more rounds, or more rows."
        )
    text = f"Of these models, use {name}. {_because(section, advice)}" if len(methods) > 1 else f"Use {name}. "
    worse = [m["name"] for m in methods if not _better(section, average(section, m["cases"]), constant)]
    if worse:
        verb, them = ("is", "it") if len(worse) == 1 else ("are", "them")
        text += f"{with_and(worse, 6)} {verb} no better than a constant answer here: do not use {them}. "
    if len(methods) > 1:
        text += "The models were compared on these very tests, so expect a little less elsewhere. "
    text += HOLD_OUT if section["spectrum"] == [SAME] else ""
    return text + "Before a model is used on people, test it on new rows of each site."


def _because(section: Section, advice: Advice) -> str:
    """How the rule came to its choice among several."""
    best, chosen, alike = advice.best, advice.chosen, [method["name"] for method in advice.alike]

    def value(method: Method) -> str:
        return _number(section, average(section, method["cases"]))

    if advice.span is None:
        return f"It is best here, with {value(best)}; no interval is known, so the difference may be chance. "
    interval = f"95 % interval ({_ends(section, advice.span)})"
    they_lie = "it lies" if len(alike) == 1 else "they lie"
    if chosen is not best:
        text = (
            f"{best['name']} is best here, with {value(best)}, but {chosen['name']}, with {value(chosen)}, lies within "
            f"its {interval}: with so few rows the difference may be chance. Among models that cannot be told apart, "
            f"{chosen['name']} is preferred, because it looks for shortcuts. "
        )
        return text + (f"{with_and(alike, 6)} may be as good: {they_lie} in that interval, too. " if alike else "")
    if not alike:
        return f"It is best here, with {value(best)}, and no other model lies within its {interval}. "
    return (
        f"It is best here, with {value(best)}. {with_and(alike, 6)} may be as good: {they_lie} within its {interval}, "
        "and with so few rows the difference may be chance. "
    )


def average(section: Section, cases: dict[str, Any]) -> float | None:
    values = [cases[name][0] if isinstance(cases[name], list) else cases[name] for name in section["spectrum"]]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _better(section: Section, a: float | None, b: float | None) -> bool:
    return a is not None and (b is None or (a > b if section["larger_is_better"] else a < b))


def _span(section: Section, method: Method) -> tuple[float, float] | None:
    """The interval of the average, of one test context; of several, the mean of their ends."""
    spans = [method["spans"][name]["mean"] for name in section["spectrum"] if name in method["spans"]]
    known = [span for span in spans if span[0] is not None]
    if not known or len(known) < len(section["spectrum"]):
        return None
    return statistics.fmean(span[0] for span in known), statistics.fmean(span[1] for span in known)


def _number(section: Section, value: float | None) -> str:
    if value is None:
        return "nothing to compare with"
    return f"an accuracy of {value:.1f} %" if section["unit"] else f"a mean squared error of {value:.3g}"


def _ends(section: Section, span: tuple[float, float]) -> str:
    low, high = (f"{end:.1f}" if section["unit"] else f"{end:.3g}" for end in span)
    return f"{low} to {high}"


def _where(section: Section) -> str:
    names, word = section["spectrum"], section["words"]["context"]
    if names == [SAME]:
        return "on rows held out at random"
    several = "on average over " if len(names) > 1 else "in "
    return f"{several}{word} {with_and(names, 6)}"
