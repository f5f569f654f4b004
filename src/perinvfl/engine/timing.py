"""Which executor is faster here, measured."""

import dataclasses
import math
import time
from collections.abc import Sequence

import torch

from perinvfl.algorithms.base import Algorithm
from perinvfl.data.federation import Federation
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings


def time_executors(
    algorithms: Sequence[Algorithm],
    federations: list[Federation],
    seeds: list[int],
    training: Training,
    model: ModelSettings,
) -> dict[str, float]:
    """Seconds of one round by executor on this device; infinite where it does not fit into memory."""
    seconds = {}
    for kind in ("vmap", "loop"):
        # One after another, each trial takes as long as the first: one tells for all.
        trials = len(algorithms) if kind == "vmap" else 1
        # States at rest on disk are left alone; what is timed is the arithmetic.
        asked = dataclasses.replace(training, executor=kind, at_rest="memory")
        try:
            rival = Simulation(algorithms[:trials], federations[:trials], seeds[:trials], asked, model)
            seconds[kind] = _round_seconds(rival) * len(algorithms) / trials
            del rival
        except torch.cuda.OutOfMemoryError:
            seconds[kind] = math.inf
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return seconds


def fastest(seconds: dict[str, float]) -> str:
    return min(seconds, key=lambda kind: seconds[kind])


def _round_seconds(simulation: Simulation) -> float:
    """Of the second round: the first one also prepares."""
    began = 0.0
    for _ in range(2):
        began = time.perf_counter()
        float(simulation.round().sum())  # waits for the device
    return time.perf_counter() - began
