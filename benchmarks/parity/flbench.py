"""FL-bench's side, in its own environment: python -m benchmarks.parity.flbench CHECKOUT DATA [METHOD ...]

Its main.py as it is, with overrides of its settings; a data set and a network are added to its registries, because it
has neither images of 14 x 14 pixels nor a network that begins with weights from a file, for personal models too.
"""

import json
import os
import pickle
import runpy
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import default_collate

from benchmarks.parity.files import NAMES, Arrays, batches_file, jobs, read_batches, read_data, write_score
from benchmarks.parity.plan import CLASSES, CLIENTS, Method, Regime


def write_partition(data: Arrays, folder: Path) -> None:
    """Which rows train and test at which client, as FL-bench reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    everyone = list(range(CLIENTS))
    rows: list[dict[str, Any]] = [
        {
            kind: ((data["client"] == client) & (data["test"] == tests)).nonzero()[0]
            for kind, tests in (("train", False), ("test", True))
        }
        for client in everyone
    ]
    separation = {"train": everyone, "val": everyone, "test": everyone, "total": CLIENTS}
    partition = {"separation": separation, "data_indices": [{**found, "val": []} for found in rows]}
    (folder / "partition.pkl").write_bytes(pickle.dumps(partition))
    (folder / "args.json").write_text(json.dumps({"dataset": "parity", "split": "sample", "client_num": CLIENTS}))


def network(decoupled: Any, weights: Arrays) -> Any:
    """FL-bench's kind of model: `base` and `classifier`."""
    (hidden, pixels), _ = weights["0.weight"].shape, None
    model = decoupled()
    layers = OrderedDict(flatten=torch.nn.Flatten(), fc=torch.nn.Linear(pixels, hidden), relu=torch.nn.ReLU())
    model.base, model.classifier = torch.nn.Sequential(layers), torch.nn.Linear(hidden, CLASSES)
    for parameter, name in zip(model.parameters(), NAMES, strict=True):
        parameter.data = torch.from_numpy(weights[name]).clone()
    return model


def mends() -> Iterator[Any]:
    """Keep what FL-bench's server sends to a client and never renews: SCAFFOLD's c_i, pFedMe's θ_i."""
    from src.client.pfedme import pFedMeClient  # type: ignore[import-not-found]
    from src.client.scaffold import SCAFFOLDClient  # type: ignore[import-not-found]

    controlled, personalised = SCAFFOLDClient.train, pFedMeClient.fit

    def keep_controls(client: Any, package: dict[str, Any]) -> Any:
        answer = controlled(client, package)
        for kept, new in zip(package["c_local"], client.c_local, strict=True):
            kept.copy_(new)
        return answer

    def keep_models(client: Any) -> None:
        personalised(client)
        for name, leaf in client.model.state_dict().items():
            client.personalized_params_dict[name].copy_(leaf)

    yield patch.object(SCAFFOLDClient, "train", keep_controls)
    yield patch.object(pFedMeClient, "fit", keep_models)


def given(batches: Any) -> Any:
    """Per-FedAvg takes these batches instead of its loader's: [rounds, clients, batches of a round, batch size]."""
    from src.client.perfedavg import PerFedAvgClient  # type: ignore[import-not-found]

    left = [iter(batches[:, client].reshape(-1, batches.shape[-1])) for client in range(CLIENTS)]

    def take(client: Any) -> Any:
        places = next(left[client.client_id])  # fails if there are too few
        return default_collate([client.trainset[place] for place in places])

    return patch.object(PerFedAvgClient, "get_data_batch", take)


def train(checkout: Path, run: tuple[Regime, Method, int], data: Arrays, batches: Any, path: Path) -> None:
    """One run of its main.py, with batches that it draws itself if there are none."""
    regime, method, seed = run
    assert method.flbench is not None
    write_partition(data, checkout / "data" / "parity")
    from data.utils.datasets import DATASETS, BaseDataset  # type: ignore[import-not-found]
    from src.server.fedavg import FedAvgServer  # type: ignore[import-not-found]
    from src.utils.models import MODELS, DecoupledModel  # type: ignore[import-not-found]

    x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    DATASETS["parity"] = lambda **_: BaseDataset(x, y, list(range(CLASSES)))
    MODELS["parity"] = lambda **_: network(DecoupledModel, data)
    finish, one_round = FedAvgServer.run_experiment, FedAvgServer.train_one_round
    first: Arrays = {}

    def model(server: Any) -> Arrays:
        last = server.public_model_params.values()
        return dict(zip(NAMES, (leaf.numpy().copy() for leaf in last), strict=True))

    def noting_first(server: Any) -> None:
        one_round(server)
        if not first:
            first.update(model(server))

    def noting(server: Any) -> None:
        finish(server)
        found = server.test_results[regime.rounds]["all_clients"]
        accuracy = {"reported": found["before"]["test"].accuracy / 100}
        if server.args.common.test.client.finetune_epoch:
            accuracy["fine-tuned"] = found["after"]["test"].accuracy / 100
        write_score(path, accuracy, model(server), first or None)

    with ExitStack() as stack:
        for mended in mends() if method.mended else ():
            stack.enter_context(mended)
        if batches is not None:
            stack.enter_context(given(batches))
            stack.enter_context(patch.object(FedAvgServer, "train_one_round", noting_first))
        stack.enter_context(patch.object(FedAvgServer, "run_experiment", noting))
        stack.enter_context(patch.object(sys, "argv", ["main.py", *options(regime, method, seed)]))
        runpy.run_path(str(checkout / "main.py"), run_name="__main__")


def options(regime: Regime, method: Method, seed: int) -> list[str]:
    settings: dict[str, Any] = {
        "dataset.name": "parity",
        "model.name": "parity",
        "common.seed": seed,
        "common.join_ratio": 1.0,
        "common.global_epoch": regime.rounds,
        "common.local_epoch": regime.epochs,
        "common.batch_size": regime.batch,
        "common.test.client.interval": regime.rounds,
        "common.client_side_evaluation": False,
        "common.use_cuda": False,
        "common.save_learning_curve_plot": False,
        "common.save_metrics": False,
        "common.verbose_gap": 10**6,
        "optimizer.lr": regime.rate,
        **(method.flbench or {}),
    }
    return [f"{'+' if _of_method(key) else ''}{key}={value}" for key, value in settings.items()]


def _of_method(key: str) -> bool:
    """Settings of single methods are not in the defaults, but for FedProx's."""
    return key.partition(".")[0] not in ("method", "dataset", "model", "common", "optimizer", "fedprox")


def main(checkout: Path, folder: Path, only: list[str]) -> None:
    checkout, folder = checkout.resolve(), folder.resolve()
    sys.path.insert(0, str(checkout))
    for regime, name, method, seed, path in jobs(folder, "FL-bench", only):
        if method.flbench is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.chdir(path.parent)  # it writes to ./out
            batches = read_batches(batches_file(folder, name, seed)) if method.same_batches else None
            data = read_data(folder, seed if method.partition is None else method.partition)
            train(checkout, (regime, method, seed), data, batches, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
