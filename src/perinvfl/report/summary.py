"""The first page of a report on own data, for people who decide: what the data are, and how good a model is.

What is here is plain values and sentences; `summary.html.j2` lays them out.
"""

import math
from collections.abc import Sequence
from typing import Any

from perinvfl.core.naming import with_and
from perinvfl.errors import UserError
from perinvfl.report.advice import SAME, advise, recommendation
from perinvfl.results.score_names import MEASURES, measures_for
from perinvfl.runs.found_words import Names, found_in_words
from perinvfl.runs.records import Run

LEADING = ("accuracy", "auroc", "sensitivity", "specificity", "brier", "calibration-error", "r2", "mae")
EXPLAINED = {
    "accuracy": "of 100 rows, how many get the right answer",
    "balanced": "the same with every class counting alike, whatever its size",
    "auroc": "of two rows, one with {yes} and one without, how often the first gets the higher probability; 0.5 is "
    "chance, 1 is perfect",
    "average-precision": "how pure the rows at the top of the list are; by chance it is the share of {yes}",
    "sensitivity": "of 100 rows with {yes}, how many are recognised",
    "specificity": "of 100 rows without, how many raise no false alarm",
    "brier": "how far the probabilities lie from what happened, squared; 0 is perfect, 0.25 is always saying one half",
    "calibration-error": "how far a stated probability lies from how often it comes true; 0 is perfect",
    "r2": "the share of the differences between labels that is explained; 0 is a constant answer, 1 is perfect",
    "mae": "how far an answer is off on average, in the unit of the label",
}
# With more than two classes, each is looked at against the others.
EXPLAINED_OF_SEVERAL = {
    "auroc": "of two rows, one of a class and one of another, how often the first gets the higher probability for that "
    "class, averaged over the classes; 0.5 is chance, 1 is perfect",
    "sensitivity": "of 100 rows of a class, how many are recognised, averaged over the {classes} classes",
    "specificity": "of 100 rows of other classes, how many are not taken for a class, averaged over the {classes} "
    "classes",
    "brier": "how far the probabilities of the classes lie from what happened, squared and added up; 0 is perfect, "
    "{guess:.2f} is giving all {classes} classes the same probability",
    "calibration-error": "how far the probability stated for the likeliest class lies from how often it is right; 0 is "
    "perfect",
}


def summarise(section: dict[str, Any], runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Of a section of own data, from its numbers and from the predictions that its runs kept."""
    methods = [method for method in section["views"][0]["methods"] if not method["reference"]]
    advice = advise(section, methods)
    chosen = advice.chosen
    scored, why_not = _scores(runs[chosen["name"]])
    words = section["words"]
    return {
        "method": chosen["name"],
        "facts": _facts(section, next(iter(runs.values()))[0]),
        "sites": _sites(section, next(iter(runs.values()))[0], scored),
        "found": _found(runs, words),
        "recommendation": recommendation(section, methods, advice),
        "threshold": _threshold(scored, words) if scored and section["classes"] else "",
        "cases": [_case(name, scored, section) for name in _cases(section, scored)] if scored else [],
        "no_scores": why_not,
        "several": len(runs[chosen["name"]]) > 1,
    }


def _facts(section: dict[str, Any], run: Run) -> list[str]:
    words, sizes = section["words"], section["sizes"]
    counted = f", {sum(sizes)} rows to train on" if sizes else ""  # a server is not told them
    facts = [f"{len(section['clients'])} sites ({words['client']}){counted}."]
    names = [case["name"] for case in section["cases"]]
    new = [name for name in names if name != SAME]
    tests = [f"rows of {words['context']} {with_and(new, 6)}"] if new else []
    tests += ["rows held out at random"] if SAME in names else []
    facts.append(f"Tested on {' and on '.join(tests)}; no model was trained on them." if tests else "")
    known = run.notes.get("encoding", {})
    facts += _gaps(known, sum(sizes))
    if known.get("levels"):
        levels = ", ".join(f"{name} ({len(of)} levels)" for name, of in known["levels"].items())
        facts.append(f"Categories: {levels}.")
    for name, numbers in known.get("missing_values", {}).items():
        facts.append(f"In {name}, {' and '.join(f'{number:g}' for number in numbers)} counts as missing, as declared.")
    if known.get("other"):
        other = ", ".join(f"{name} {count}" for name, count in known["other"].items())
        facts.append(f"Rows whose level was rare or new, and counts as other: {other}.")
    if known.get("excluded"):
        facts.append(f"{known['excluded']} rows of sites that were left aside are not in it.")
    if run.notes.get("ignored"):
        facts.append(f"Columns left out: {with_and(run.notes['ignored'], 12)}.")
    return [fact for fact in facts if fact]


def _gaps(known: dict[str, Any], trained: int) -> list[str]:
    """What was done with missing values, of numbers and of categories.

    >>> _gaps({"rows": 9, "missing": {"age": 2, "ward": 1}, "levels": {"ward": ["a", "b"]}}, trained=5)[1]
    'A missing category counts as a level of its own: ward in 1 of all 9 rows, tests included.'
    """
    missing, levels, rows = known.get("missing", {}), known.get("levels", {}), known.get("rows", 0)
    # Sites count the rows that they train on.
    among = f"of all {rows} rows, tests included" if 0 < trained < rows else f"of the {rows} training rows"

    def counted(names: list[str]) -> str:
        return f"{with_and([f'{name} in {missing[name]}' for name in names], 12)} {among}."

    numbers = [name for name in missing if name not in levels]
    categories = [name for name in missing if name in levels]
    filled = "Missing numbers were filled with the median of the training rows, and a further column says where"
    facts = [f"{filled}: {counted(numbers)}"] if numbers else []
    return facts + ([f"A missing category counts as a level of its own: {counted(categories)}"] if categories else [])


def _sites(section: dict[str, Any], run: Run, scored: dict[str, Any] | None) -> dict[str, Any]:
    """Rows by site, those tested on by test, and how common each class is there."""
    tests = _cases(section, scored) if scored else []
    labels = run.notes.get("labels")  # counts of classes in training, by client; of a number, its mean
    rows = []
    for place, name in enumerate(section["clients"]):
        tested = []
        if scored:
            there = [scored["cases"][case]["clients"] for case in tests]
            tested = [found[name]["samples"] if name in found else 0 for found in there]
        shares = []
        if labels and section["classes"]:
            total = max(sum(labels[place]), 1)
            shares = [f"{100 * count / total:.0f} %" for count in labels[place]]
        size = section["sizes"][place] if place < len(section["sizes"]) else ""
        rows.append({"name": name, "trained": size, "tested": tested, "shares": shares})
    heads = [f"{section['words']['label']} = {name}" for name in section["classes"]] if labels else []
    titles = ["held out at random" if case == SAME else f"{section['words']['context']} {case}" for case in tests]
    tested_on = [f"Rows tested on, {title}" for title in titles] if len(tests) > 1 else ["Rows tested on"] * len(tests)
    return {"tests": tested_on, "heads": heads, "rows": rows}


def _found(runs: dict[str, list[Run]], own: dict[str, str]) -> list[str]:
    """What `recommended` found, once for seeds that found the same."""
    said: dict[str, dict[str, list[str]]] = {}
    for name, same in runs.items():
        for run in same:
            words = found_in_words(run.found, Names.of(run.start.get("schema", {})))
            for role, column in (("contexts", own["context"]), ("clients", own["client"])):
                words = words.replace(f"between {role}", f"between {role} ({column})")
            if words:
                said.setdefault(words, {}).setdefault(name, []).append(str(run.start["asked"]["seed"]))
    if len(said) == 1:
        return list(said)
    return [f"{words} ({'; '.join(_with_seeds(*each) for each in who.items())})" for words, who in said.items()]


def _with_seeds(name: str, seeds: list[str]) -> str:
    """
    >>> _with_seeds("Recommended", ["0"]), _with_seeds("Recommended", ["0", "2"])
    ('Recommended, seed 0', 'Recommended, seeds 0 and 2')
    """
    return f"{name}, seed{'s' if len(seeds) > 1 else ''} {with_and(seeds)}"


def _scores(runs: list[Run]) -> tuple[dict[str, Any] | None, str]:
    """The scores of the first run with the mean over seeds, or why there are none."""
    from perinvfl.scoring.run_scores import mean_of, run_scores  # numpy

    try:
        each = [run_scores(run) for run in runs]
    except UserError as error:
        return None, str(error)
    first = each[0]
    for name, case in first["cases"].items():
        case["mean"] = mean_of([found["cases"][name]["mean"] for found in each])
    return first, ""


def _cases(section: dict[str, Any], scored: dict[str, Any]) -> list[str]:
    """Sites tell nothing of a case with few rows."""
    return [case["name"] for case in section["cases"] if case["name"] in scored["cases"]][:4]


def _threshold(scored: dict[str, Any], words: dict[str, str]) -> str:
    found = scored["threshold"]
    if found is None or scored["task"] != "binary":
        return ""
    yes = f"{words['label']} = {scored['classes'][-1]}"
    if found["value"] is None:
        return (
            f"Computed at the sites, which sent these numbers and no rows. For sensitivity and specificity each site "
            f"chose its own threshold on the probability of {yes}, on its own rows held out of training; one without "
            "rows of both classes took 50 %."
        )
    if not found["chosen"]:
        return f"A row counts as {yes} if its probability is at least 50 %."
    few = " There were few such rows, so it is uncertain." if found["few"] else ""
    return (
        f"For sensitivity, specificity and the table of counts, a row counts as {yes} if its probability is at least "
        f"{100 * found['value']:.0f} %. At this threshold, sensitivity plus specificity is largest on "
        f"{sum(found['counts'])} rows held out of training. Accuracy does not use this threshold.{few}"
    )


def _case(name: str, scored: dict[str, Any], section: dict[str, Any]) -> dict[str, Any]:
    found, words = scored["cases"][name], section["words"]
    yes = f"{words['label']} = {scored['classes'][-1]}" if scored["classes"] else ""
    names = [measure for measure in LEADING if measure in measures_for(scored["task"])]
    title = "Rows held out at random" if name == SAME else f"{words['context']} {name}"
    return {
        "name": name,
        "title": title,
        "scores": [_score(measure, found["mean"][measure], yes, len(scored["classes"] or [])) for measure in names],
        "confusion": _confusion(found["confusion"], scored["classes"], words["label"]),
        "calibration": _calibration(found["calibration"]) if scored["task"] == "binary" else None,
        "yes": yes,
        "few": found["few"],
        "clients": [
            {"name": client, "samples": own["samples"], "few": own["few"],
             "scores": [_score(measure, own["scores"][measure], yes, len(scored["classes"] or []))
                        for measure in names[:4]]}
            for client, own in found["clients"].items()
        ],
    }  # fmt: skip


def _score(name: str, found: dict[str, float | None], yes: str, classes: int) -> dict[str, str]:
    measure = MEASURES[name]
    form, factor = (".1f", 100.0) if measure.percent else (".2f", 1.0)
    ends = [found["low"], found["high"]]
    interval = ""
    if ends[0] is not None and ends[1] is not None:
        interval = f"{factor * ends[0]:{form}} to {factor * ends[1]:{form}}"
    value = "not known" if found["value"] is None else f"{factor * found['value']:{form}}"
    unit = " %" if measure.percent and found["value"] is not None else ""
    title = measure.title[0].upper() + measure.title[1:]
    meaning = (EXPLAINED | EXPLAINED_OF_SEVERAL if classes > 2 else EXPLAINED)[name]
    meaning = meaning.format(yes=yes, classes=classes, guess=1 - 1 / max(classes, 1))
    return {"title": title, "value": value + unit, "interval": interval, "meaning": meaning}


def _confusion(table: list[list[int]] | None, classes: Sequence[str], label: str) -> dict[str, Any] | None:
    if table is None:
        return None
    sentence = ""
    if len(table) == 2:
        (right_no, false_alarm), (missed, right_yes) = table
        sentence = (
            f"Of {missed + right_yes} rows with {label} = {classes[1]}, {right_yes} are recognised and {missed} are "
            f"missed. Of {right_no + false_alarm} rows with {label} = {classes[0]}, {false_alarm} are false alarms."
        )
    return {"rows_of": table, "classes": list(classes), "sentence": sentence}


def _calibration(bins: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """With an interval (Wilson's) and the size of a dot."""
    found, most = [], max((bin["samples"] for bin in bins or []), default=1)
    for bin in bins or []:
        n, p, z = bin["samples"], bin["observed"], 1.96
        middle, half = (p + z * z / (2 * n)) / (1 + z * z / n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        low, high = middle - half / (1 + z * z / n), middle + half / (1 + z * z / n)
        found.append({**bin, "low": max(0.0, low), "high": min(1.0, high), "radius": 3 + 5 * math.sqrt(n / most)})
    return found
