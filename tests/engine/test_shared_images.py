"""Trials of one search share their images: what a sweep keeps is one trial's data and the models."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from perinvfl.engine.simulation import Simulation
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.search import search

TABLE = Path(__file__).parents[2] / "experiments" / "rc_mnist.toml"
SMALL = ["data.train_per_client=500", "data.holdout=50", "data.test_per_client=100", 'training.executor="vmap"']


def bytes_of(*kept: Any) -> int:
    """Of all memory that tensors lie in, each piece counted once."""
    found: dict[int, int] = {}

    def see(part: Any) -> None:
        if isinstance(part, torch.Tensor):
            found[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
        elif isinstance(part, dict):
            see(list(part.values()))
        elif isinstance(part, list | tuple):
            for one in part:
                see(one)
        elif dataclasses.is_dataclass(part):
            see([getattr(part, field.name) for field in dataclasses.fields(part)])

    see(list(kept))
    return sum(found.values())


def test_a_sweep_keeps_the_data_of_one_trial() -> None:
    experiment = search(read_experiment(TABLE, [*SMALL, 'training.device="cpu"']), 24, 0)
    trials = [trial for trial in experiment.trials if trial.method == "PerInvFL"]
    assert len(trials) == 24

    def simulated(count: int) -> Simulation:
        some, data = trials[:count], trials[0].federation()
        return Simulation([t.algorithm for t in some], [data], [0] * count, some[0].training, some[0].model)

    one, sweep = simulated(1), simulated(24)
    sweep.round()
    models = bytes_of(sweep.server, sweep.store.states)  # type: ignore[union-attr]
    assert bytes_of(sweep.data, sweep.tests) + models <= 1.3 * (bytes_of(one.data, one.tests) + models)
    assert bytes_of(sweep.data, sweep.tests) <= 1.3 * bytes_of(one.data, one.tests)
    assert bytes_of(sweep.data.x) == bytes_of(one.data.x) > 0
