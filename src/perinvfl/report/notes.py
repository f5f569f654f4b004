"""What to know besides the numbers of a report."""

from perinvfl.results.table import absent_notes
from perinvfl.runs.fit import fit_on_record
from perinvfl.runs.found_words import Names, found_in_words
from perinvfl.runs.records import Run

LAST_ROUND = (
    "Nothing was selected: every number is that of the last round, with the settings of the experiment file. "
    "If those settings or the number of rounds were chosen by looking at test results, the numbers are optimistic."
)
RULE_WORDS = {
    "source": (
        "For each method, the setting and the round with the best accuracy on held-out data of the clients' own "
        "training contexts. Anyone can follow this rule: it looks at no test context."
    ),
    "leave-one-client-out": (
        "For each method, the setting and the round that do best at a client left out of training, averaged over "
        "leaving each client out in turn. It looks at no test context."
    ),
    "worst-inferred-context": (
        "For each method, the setting and the round that do best on held-out data of the clients' own training "
        "contexts, judged by the worse of two parts: what a reference model gets right and what it gets wrong. It "
        "looks at no test context."
    ),
    "oracle": (
        "For each method, the setting with the best worst-case accuracy over the shifted test contexts themselves, "
        "each run stopped at its best round. Nobody could know this beforehand: read it as an upper bound on what "
        "tuning can achieve."
    ),
}


def notes_on(runs: list[Run]) -> list[str]:
    """What to know besides the numbers: units, what was found before training, and models that learned nothing."""
    start = runs[0].start
    notes = []
    if start["task"] == "regression" and start["asked"]["data"].get("standardise"):
        notes.append("Errors are in units of the label's variance in training.")
    for run in runs:
        who = f"{run.method}, seed {run.start['asked']['seed']}"
        words = found_in_words(run.found, Names.of(run.start.get("schema", {})))
        notes += [f"{who}: {words}"] if words else []
        fit = fit_on_record(run)
        notes += [f"{who}: {fit.in_words()}"] if fit is not None and not fit.better else []
    return [*notes, *absent_notes(runs)]
