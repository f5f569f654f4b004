"""PFLlib's side, in its own environment: python -m benchmarks.parity.pfllib CHECKOUT DATA [METHOD ...]

Its servers and clients as they are; what its main.py does with its options is done here, because that can neither take
the first weights from a file nor a network for images of 14 x 14 pixels.
"""

import importlib
import os
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy
import torch

from benchmarks.parity.files import NAMES, Arrays, jobs, read_data, write_score
from benchmarks.parity.plan import CLASSES, CLIENTS, Method, Regime

MODULES = {  # algorithm: module of flcore.servers
    "FedAvg": "serveravg",
    "FedProx": "serverprox",
    "SCAFFOLD": "serverscaffold",
    "FedPer": "serverper",
    "FedRep": "serverrep",
    "Ditto": "serverditto",
    "APFL": "serverapfl",
    "pFedMe": "serverpFedMe",
    "PerAvg": "serverperavg",
    "FedALA": "serverala",
}
DEFAULTS: dict[str, Any] = {  # of main.py, where they matter here
    "device": "cpu",
    "dataset": "parity",
    "num_classes": CLASSES,
    "num_clients": CLIENTS,
    "join_ratio": 1.0,
    "random_join_ratio": False,
    "few_shot": 0,
    "time_select": False,
    "time_threthold": 10000,
    "goal": "test",
    "save_folder_name": "items",
    "top_cnt": 100,
    "auto_break": False,
    "client_drop_rate": 0.0,
    "train_slow_rate": 0.0,
    "send_slow_rate": 0.0,
    "dlg_eval": False,
    "dlg_gap": 100,
    "batch_num_per_client": 2,
    "num_new_clients": 0,
    "fine_tuning_epoch_new": 0,
    "learning_rate_decay": False,
    "learning_rate_decay_gamma": 0.99,
    "server_learning_rate": 1.0,
    "plocal_epochs": 1,
    "K": 5,
}


class Net(torch.nn.Module):
    """`base` and `head`, as PFLlib's BaseHeadSplit."""

    def __init__(self, weights: Arrays) -> None:
        super().__init__()
        (hidden, pixels), (classes, _) = weights["0.weight"].shape, weights["1.weight"].shape
        self.base = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(pixels, hidden), torch.nn.ReLU())
        self.head = torch.nn.Linear(hidden, classes)
        for parameter, name in zip(self.parameters(), NAMES, strict=True):
            parameter.data = torch.from_numpy(weights[name]).clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.base(x))
        return found


def write_clients(data: Arrays, folder: Path) -> None:
    """A file for each client, as PFLlib reads them."""
    for kind, tests in (("train", False), ("test", True)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for client in range(CLIENTS):
            mine = (data["client"] == client) & (data["test"] == tests)
            with open(folder / kind / f"{client}.npz", "wb") as file:
                numpy.savez(file, data=numpy.array({"x": data["x"][mine], "y": data["y"][mine]}, dtype=object))


def train(regime: Regime, method: Method, seed: int, data: Arrays) -> tuple[dict[str, float], Arrays | None]:
    assert method.pfllib is not None
    options = {
        **DEFAULTS,
        "global_rounds": regime.rounds,
        "eval_gap": regime.rounds,
        "batch_size": regime.batch,
        "local_epochs": regime.epochs,
        "local_learning_rate": regime.rate,
        **method.pfllib,
        "model": Net(data),
    }
    name = options["algorithm"]
    server = getattr(importlib.import_module(f"flcore.servers.{MODULES[name]}"), name)(
        types.SimpleNamespace(**options), 0
    )
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)  # every client that is made sets it to 0
    send, sent = server.send_models, list[Any]()

    def noting() -> None:
        sent[:] = [parameter.detach().numpy().copy() for parameter in server.global_model.parameters()]
        send()

    server.send_models = noting
    server.train()  # evaluates before the first round and after the last; then trains once more
    found = server.rs_test_acc_per if name == "pFedMe" else server.rs_test_acc
    model = dict(zip(NAMES, sent, strict=True)) if len(sent) == len(NAMES) else None  # else the base alone
    return {"reported": float(found[-1])}, model


def main(checkout: Path, folder: Path, only: list[str]) -> None:
    sys.path.insert(0, str(checkout.resolve() / "system"))
    place = folder.resolve() / "pfllib"
    (place / "system").mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    os.chdir(place / "system")  # PFLlib reads ../dataset
    for regime, _, method, seed, path in jobs(folder, "PFLlib", only):
        if method.pfllib is not None:
            data = read_data(folder, seed)
            write_clients(data, place / "dataset" / "parity")
            with open(os.devnull, "w") as quiet:
                shown, sys.stdout = sys.stdout, quiet
                try:
                    accuracy, model = train(regime, method, seed, data)
                finally:
                    sys.stdout = shown
            write_score(path, accuracy, model)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
