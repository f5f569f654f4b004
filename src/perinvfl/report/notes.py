"""What to know besides the numbers of a report."""

from perinvfl.results.table import absent_notes
from perinvfl.runs.fit import fit_on_record
from perinvfl.runs.found_words import Names, found_in_words
from perinvfl.runs.records import Run


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
