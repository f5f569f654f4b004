"""A table of any score, from the predictions that runs keep: deviation over seeds, intervals over samples."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from perinvfl.errors import UserError
from perinvfl.results.folds import join_folds
from perinvfl.results.score_names import MEASURES, Measure
from perinvfl.results.table import (
    FEW_MARK,
    Row,
    Table,
    by_setting,
    constant_row,
    finished_runs,
    left_out_notes,
    own_name,
    spread_note,
)
from perinvfl.runs.predictions import CONSTANT, VALIDATION, Predictions
from perinvfl.runs.records import PREDICTIONS, Run
from perinvfl.scoring.measures import mean_scores
from perinvfl.scoring.run_scores import (
    check_measure,
    mean_of,
    predictions_of,
    run_scores,
    samples_of,
    scores_of_predictions,
)
from perinvfl.scoring.sample_scores import FEW, Sample

SAME_FOR_EVERY_CONSTANT = ("balanced", "auroc", "average-precision")  # whichever class it names
KNOWN_OF_A_CONSTANT = ("accuracy", *SAME_FOR_EVERY_CONSTANT, "r2", "mae")  # however sure it is
UNDEFINED = "a class is missing there, or sites tell nothing of so few rows"
AT_THRESHOLD = ("sensitivity", "specificity")


def has_scores(runs: list[Run]) -> bool:
    """Whether every finished run holds scores, or the predictions to compute them from."""
    done = [run for run in runs if run.finished and run.broken is None]
    return all(run.scores is not None or (run.folder / PREDICTIONS).exists() for run in done)


def score_table(runs: list[Run], score: str) -> Table:
    """One row per method, from the last round of every finished run."""
    runs = join_folds(runs)
    finished = finished_runs(runs)
    first, measure = finished[0], MEASURES[score]
    check_measure(score, first.task)
    spectrum = tuple(first.spectrum)
    scored = {label: [run_scores(run, names=[score]) for run in same] for label, same in by_setting(finished).items()}
    rows = [*_constant(finished, spectrum, measure)]
    measured = [_row(label, found, spectrum, measure) for label, found in scored.items()]
    rows += [row for row in measured if row.spectrum]
    undefined = [row.method for row in measured if not row.spectrum]
    if len(undefined) == len(measured):
        raise UserError(f"--score {score}: no run here has it at {', '.join(spectrum)}; {UNDEFINED}.")
    known = [case for row in rows for case in row.cases]
    beyond = tuple(case for case in dict.fromkeys(known) if case not in spectrum)
    classes = len(next(iter(scored.values()))[0].get("classes", ()))
    notes = [
        f"{measure.title[0].upper()}{measure.title[1:]}: {measure.meaning(classes)}.",
        spread_note(finished, spectrum),
        *_notes(scored, measure, first),
    ]
    notes += [f"Without {label}, which has no {score} at {', '.join(spectrum)}; {UNDEFINED}." for label in undefined]
    notes += left_out_notes(runs)
    return Table(first.benchmark, rows, spectrum, beyond, "last round", notes, name=own_name(first))


class Answered(NamedTuple):
    """What the models of a run say about another file."""

    run: Run
    found: Predictions  # with those of a constant, as a kind of model
    clients: Sequence[str]  # whose rows these are


def table_on_file(answered: Sequence[Answered], case: str, score: str, further: Sequence[str]) -> Table:
    """The same of another file, with these notes."""
    runs, measure = [each.run for each in answered], MEASURES[score]
    first = runs[0]
    check_measure(score, first.task)
    of_run = {each.run.folder: each for each in answered}

    def scored(run: Run, kind: str) -> dict[str, Any]:
        answers, classes = of_run[run.folder], run.start.get("schema", {}).get("classes", ())
        return scores_of_predictions(answers.found, answers.clients, classes, kind, [score])

    by_method = {label: [scored(run, "") for run in same] for label, same in by_setting(runs).items()}
    rows = []
    if score in KNOWN_OF_A_CONSTANT:
        answers = {run.folder: sum(map(len, of_run[run.folder].found.labels[case])) for run in runs}
        of_seeds = {run.seed: run for run in sorted(runs, key=lambda run: answers[run.folder])}  # that with most rows
        row = _row("Constant", [scored(run, CONSTANT) for run in of_seeds.values()], (case,), measure)
        rows.append(dataclasses.replace(row, kind="reference", intervals={}, few=()))
    rows += [_row(label, found, (case,), measure) for label, found in by_method.items()]
    rows = [row for row in rows if row.spectrum]
    if not rows:
        raise UserError(f"--score {score}: no run has it on {case}; {UNDEFINED}.")
    classes = len(next(iter(by_method.values()))[0].get("classes", ()))
    title = f"{measure.title[0].upper()}{measure.title[1:]}: {measure.meaning(classes)}."
    notes = [title, *further, spread_note(runs, (case,)), *_notes(by_method, measure, first)]
    return Table(first.benchmark, rows, (case,), (), "last round", notes, name=f"{own_name(first)} on {case}")


def _row(label: str, of_seeds: Sequence[dict[str, Any]], spectrum: tuple[str, ...], measure: Measure) -> Row:
    cases: dict[str, tuple[float, float]] = {}
    spans: dict[str, tuple[float, float]] = {}
    few = []
    for case in of_seeds[0]["cases"]:
        same = [found["cases"][case] for found in of_seeds if case in found["cases"]]
        values = [value for each in same if (value := each["mean"][measure.name]["value"]) is not None]
        if not values:
            continue  # defined at no client
        cases[case] = (measure.factor * statistics.fmean(values), measure.factor * statistics.pstdev(values))
        over_seeds = mean_of([each["mean"] for each in same])[measure.name]
        if over_seeds["low"] is not None and over_seeds["high"] is not None:
            spans[case] = (measure.factor * over_seeds["low"], measure.factor * over_seeds["high"])
        if any(each["few"] for each in same):
            few.append(case)
    return Row(
        label,
        "measured",
        cases,
        tuple(case for case in spectrum if case in cases),
        _worst_client(of_seeds, spectrum, measure),
        len(of_seeds),
        errors=not measure.larger_is_better,
        score=measure.name,
        intervals=spans,
        few=tuple(few),
    )


def _worst_client(of_seeds: Sequence[dict[str, Any]], spectrum: Sequence[str], measure: Measure) -> float | None:
    """The mean over the spectrum at the client that fares worst; mean over seeds."""
    worst = []
    for found in of_seeds:
        by_client: dict[str, list[float]] = {}
        for case in spectrum:
            for client, own in found["cases"].get(case, {"clients": {}})["clients"].items():
                value = own["scores"][measure.name]["value"]
                if value is not None:
                    by_client.setdefault(client, []).append(value)
        if len(by_client) > 1:
            means = [statistics.fmean(values) for values in by_client.values()]
            worst.append(min(means) if measure.larger_is_better else max(means))
    return measure.factor * statistics.fmean(worst) if worst else None


def _constant(runs: list[Run], spectrum: tuple[str, ...], measure: Measure) -> list[Row]:
    """What a constant answer scores, where that does not depend on how sure it is."""
    if measure.name == "accuracy":
        return [constant_row(runs, spectrum)]
    if measure.name not in SAME_FOR_EVERY_CONSTANT:
        return []
    by_case: dict[str, list[float]] = {}
    for run in {run.seed: run for run in runs}.values():
        for fold in run.folds or (run,):
            for case, value in _of_a_constant(fold, measure.name).items():
                by_case.setdefault(case, []).append(measure.factor * value)
    cases = {case: (statistics.fmean(values), statistics.pstdev(values)) for case, values in by_case.items()}
    there = tuple(case for case in spectrum if case in cases)
    return [Row("Constant", "reference", cases, there, score=measure.name)] if there else []


def _of_a_constant(run: Run, name: str) -> dict[str, float]:
    """By test case, the mean over clients: from the labels, or from the counts of classes that the record has."""
    labels: dict[str, list[Sample]] = {}
    if run.scores is None:
        found = predictions_of(run)
        for case in found.labels:
            labels[case] = [Sample(s.task, s.labels, np.zeros_like(s.outputs)) for s in samples_of(found, case)]
    else:
        for case, stored in next(iter(run.scores.values()))["cases"].items():
            counts = [own["counts"] for own in stored["clients"].values() if own["counts"]]
            labels[case] = [_alike(run.task, of_classes) for of_classes in counts]
    known = {
        case: mean_scores(silent, names=[name])[name]
        for case, silent in labels.items()
        if silent and case != VALIDATION
    }
    return {case: value for case, value in known.items() if value is not None}


def _alike(task: str, counts: Sequence[int]) -> Sample:
    """So many samples of each class, and the same answer to all."""
    y = np.repeat(np.arange(len(counts), dtype=np.float64), counts)
    return Sample(task, y, np.zeros((len(y), 1 if task == "binary" else len(counts))))


def _notes(scored: dict[str, list[dict[str, Any]]], measure: Measure, first: Run) -> list[str]:
    every = [found for of_seeds in scored.values() for found in of_seeds]
    several = any(len(found) > 1 for found in scored.values())
    notes = ["[low, high]: 95 % bootstrap interval over samples" + (", the mean over seeds." if several else ".")]
    if first.start.get("sites"):
        notes = ["Computed at the sites, which send no rows, so there are no intervals."]
    if measure.name in AT_THRESHOLD and first.task == "binary":
        notes += _threshold_notes(scored, first)
    marked = [(case, name) for found in every for case, one in found["cases"].items() for name in one["few"]]
    if marked:
        names = [f"{client} ({case})" for case, client in dict.fromkeys(marked)]
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        what = "samples" if first.task == "regression" else "samples of a class"
        notes.append(f"{FEW_MARK} fewer than {FEW} {what} at a client, so that its score says little: {shown}.")
    missing = [
        (case, client)
        for found in every
        for case, one in found["cases"].items()
        for client, own in one["clients"].items()
        if own["scores"][measure.name]["value"] is None
    ]
    if missing:
        shown = ", ".join(f"{client} ({case})" for case, client in list(dict.fromkeys(missing))[:6])
        notes.append(f"Not defined, and left out of the mean, where a client's samples are all alike: {shown}.")
    return notes


def _threshold_notes(scored: dict[str, list[dict[str, Any]]], first: Run) -> list[str]:
    chosen = [
        (label, found["threshold"]) for label, of_seeds in scored.items() for found in of_seeds if found["threshold"]
    ]
    if not chosen:  # of leave-one-context-out
        return ["Threshold: in each run where sensitivity + specificity is largest on the clients' held-out data."]
    if first.start.get("sites"):
        return ["Threshold: at each site where sensitivity + specificity is largest on its own held-out rows, or 0.5."]
    if not all(threshold["chosen"] for _, threshold in chosen):
        return ["Threshold: 0.5, as no samples of both classes were held out to choose it on (data.holdout)."]
    names = (first.start.get("schema", {}).get("classes") or ["0", "1"])[-1]
    values: dict[str, list[str]] = {}
    for label, threshold in chosen:
        values.setdefault(label, []).append(f"{threshold['value']:.2f}")
    shown = "; ".join(f"{label} {', '.join(found)}" for label, found in values.items())
    note = (
        f'Threshold on the probability of "{names}": where sensitivity + specificity is largest on the held-out data '
        f"of all clients, not on the tests: {shown}."
    )
    few = any(threshold["few"] for _, threshold in chosen)
    return [note + (f" Chosen on fewer than {FEW} samples of a class." if few else "")]
