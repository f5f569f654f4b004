"""The files between the projects: data and first weights in, scores and last models out. Needs NumPy alone."""

import json
from collections.abc import Collection, Iterator
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


def batches_file(folder: Path, name: str, seed: int) -> Path:
    """[rounds, clients, batches of a round, batch size] places among a client's training images, drawn here."""
    return folder / "batches" / f"{name}-{seed}.npy"


def read_batches(path: Path) -> Any:
    return numpy.load(path).astype("int64")


def plain_file(folder: Path, name: str, seed: int) -> Path:
    """Accuracies of plain code in double precision."""
    return folder / "plain" / f"{name}-{seed}.json"


def planned(only: Collection[str] = ()) -> Iterator[tuple[Regime, str, Method, int]]:
    """Every run, or those of some methods."""
    for regime in REGIMES.values():
        for name, method in methods(regime).items():
            if not only or name in only:
                for seed in method.seeds or regime.seeds:
                    yield regime, name, method, seed


def jobs(folder: Path, project: str, only: Collection[str] = ()) -> Iterator[tuple[Regime, str, Method, int, Path]]:
    """What a project has still to run: where its score goes comes last."""
    for regime, name, method, seed in planned(only):
        path = folder / project / regime.name / f"{name}-{seed}.json"
        if not path.exists():
            yield regime, name, method, seed, path


def first_file(score: Path) -> Path:
    """The global model after the first round."""
    return score.with_suffix(".first.npz")


def write_score(path: Path, accuracy: dict[str, float], model: Arrays | None, first: Arrays | None = None) -> None:
    """Accuracies from 0 to 1 by what they are of ("personal", "global"), and the last and the first global model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for kept, file in ((model, path.with_suffix(".npz")), (first, first_file(path))):
        if kept is not None:
            numpy.savez(file, **kept)
    path.write_text(json.dumps(accuracy), encoding="utf-8")
    print(path.parent.parent.name, path.parent.name, path.stem, accuracy, flush=True)
