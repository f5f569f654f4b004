"""The end of runs that trained together: how they fit, what they predict, and the last line of each record."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from perinvfl.data.constant import constant_fit
from perinvfl.data.federation import Federation
from perinvfl.engine.evaluation import predict_tests, training_scores
from perinvfl.engine.simulation import Simulation
from perinvfl.runs import events
from perinvfl.runs.event_log import Writer
from perinvfl.runs.fit import Fit
from perinvfl.runs.predictions import VALIDATION, Predictions, collect, write_predictions
from perinvfl.runs.trial import Trial

MOST_THREADS = 16


def finish_runs(
    trials: Sequence[Trial], writers: Sequence[Writer], broken: set[int], simulation: Simulation, seconds: float
) -> list[Fit | None]:
    """Close every record; how each run fits its training data, None of those that broke."""
    peak = torch.cuda.max_memory_allocated() if simulation.device.type == "cuda" else 0
    sound = [t for t in range(len(trials)) if t not in broken]
    fits = training_scores(simulation).mean(1).tolist() if sound else []
    outputs = predict_tests(simulation) if sound else {}
    even = simulation.problem.even_classes
    constants: dict[object, float] = {}
    found: dict[int, tuple[Fit, Predictions]] = {}
    for t in sound:
        data, of = trials[t].federation(), (trials[t].data, trials[t].seed)
        if of not in constants:
            chosen = simulation.trained_clients[t] if simulation.samples_clients else None
            constants[of] = constant_fit(data, chosen, even)
        fit = Fit(fits[t], constants[of], data.task == "regression", even)
        found[t] = fit, predictions_at(simulation, data, outputs, t)

    def write(t: int) -> None:
        if t in found:
            fit, predictions = found[t]
            kept = write_predictions(writers[t].path.parent, predictions)
            further = {"training": fit.as_fields(), "predictions": kept}
            writers[t].write(**events.end_event(simulation.rounds_done, seconds, peak, **further))
        writers[t].finish()

    # Compressing and flushing take most of the time, and other threads go on meanwhile.
    with ThreadPoolExecutor(min(MOST_THREADS, len(trials), os.cpu_count() or 1)) as pool:
        list(pool.map(write, range(len(trials))))
    return [found[t][0] if t in found else None for t in range(len(trials))]


def predictions_at(
    simulation: Simulation, federation: Federation, outputs: dict[str, dict[str, torch.Tensor]], t: int
) -> Predictions:
    """What the models of one trial say about its held-out samples, to keep."""
    kept = [*federation.tests, *([] if federation.validation is None else [VALIDATION])]
    of_trial = {kind: {case: cases[case][t] for case in kept} for kind, cases in outputs.items()}
    own = simulation.tested_clients[t] if simulation.samples_clients else slice(None)
    labels = {case: simulation.tests[case].y[t][own].cpu() for case in kept}
    contexts = {case: simulation.tests[case].context[t][own].cpu() for case in kept}
    return collect(federation, simulation.rounds_done, of_trial, labels, contexts)
