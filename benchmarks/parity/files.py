"""The files between the projects: data and first weights in, scores and last models out. Needs NumPy alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy

from benchmarks.parity.plan import REGIMES, Method, Regime, methods

Arrays = dict[str, Any]
NAMES = ("0.weight", "0.bias", "1.weight", "1.bias")  # of the network's parameters, in order


def data_file(folder: Path, seed: int) -> Path:
    """x [n, 1, 14, 14], y [n], client [n] and test [n] (true: tests only), and the first weights by their names."""
    return folder / f"seed_{seed}.npz"


def read_data(folder: Path, seed: int) -> Arrays:
    with numpy.load(data_file(folder, seed)) as file:
        return {name: file[name] for name in file.files}


def jobs(folder: Path, project: str) -> Iterator[tuple[Regime, str, Method, int, Path]]:
    """What a project has still to run: where its score goes comes last."""
    for regime in REGIMES.values():
        for seed in regime.seeds:
            for name, method in methods(regime).items():
                path = folder / project / regime.name / f"{name}-{seed}.json"
                if not path.exists():
                    yield regime, name, method, seed, path


def write_score(path: Path, accuracy: dict[str, float], model: Arrays | None) -> None:
    """Accuracies from 0 to 1 by what they are of ("personal", "global"), and the last global model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if model is not None:
        numpy.savez(path.with_suffix(".npz"), **model)
    path.write_text(json.dumps(accuracy), encoding="utf-8")
    print(path.parent.parent.name, path.parent.name, path.stem, accuracy, flush=True)
