"""Every method on a small federation, and what a run came to."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms import (
    APFL,
    FTFA,
    IRM,
    IRMFT,
    IRML2,
    SCAFFOLD,
    Alone,
    Ditto,
    FedAdam,
    FedALA,
    FedAvg,
    FedNova,
    FedPer,
    FedProx,
    FedRep,
    FedYogi,
    GroupDRO,
    LGFedAvg,
    PerFedAvg,
    PerInvFL,
    PFedMe,
)
from perinvfl.algorithms.base import Algorithm, Broadcast, ClientState
from perinvfl.core import tree
from perinvfl.core.tree import Params
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.local_client import without_padding
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.problem import Batches
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from tests import reference

MODEL = ModelSettings(hidden=(5, 4))
EXECUTORS = ("vmap", "loop")
STORES = ["vmap memory", "loop memory", "vmap disk", "loop disk"]
ALL: dict[str, Algorithm] = {
    "alone": Alone(),
    "fedavg": FedAvg(),
    "ditto": Ditto(personal_steps=2),
    "ftfa": FTFA(finetune_steps=2),
    "pfedme": PFedMe(local_steps=2, personal_steps=2, pull=1.0),
    "fedprox": FedProx(local_steps=2),
    "scaffold": SCAFFOLD(local_steps=2),
    "fedadam": FedAdam(),
    "fedyogi": FedYogi(),
    "fednova": FedNova(local_steps=3),
    "fedper": FedPer(local_steps=2),
    "fedrep": FedRep(personal_steps=2),
    "lg_fedavg": LGFedAvg(local_steps=2),
    "apfl": APFL(local_steps=2),
    "per_fedavg": PerFedAvg(),
    "fedala": FedALA(weight_rate=30.0),
    "groupdro": GroupDRO(group_step=0.5),
    "irm": IRM(),
    "irm_ft": IRMFT(finetune_steps=2),
    "irm_l2": IRML2(),
    "perinvfl_irm": PerInvFL(local_steps=2, personal_steps=2, warmup_rounds=2),
    "perinvfl_groupdro": PerInvFL(local_steps=2, invariance="groupdro", group_step=0.5),
}
PARTS = ("fedper", "fedrep", "lg_fedavg")  # what they send depends on a part that they do not
PERSONAL = ("ditto", "irm_l2", "perinvfl_irm", "perinvfl_groupdro")


def small_federation(**settings: Any) -> Federation:
    usual: dict[str, Any] = {"clients": 4, "contexts": 2, "samples": 18, "shape": (3,), "seed": 1}
    return random_federation(**(usual | settings))


def simulate(
    algorithms: Algorithm | list[Algorithm],
    rounds: int = 0,
    executor: str = "loop",
    seeds: list[int] | None = None,
    federation: Federation | None = None,
    folder: Path | None = None,
    **training: Any,
) -> Simulation:
    algorithms = algorithms if isinstance(algorithms, list) else [algorithms]
    how = Training(executor=executor, device="cpu", **training)  # type: ignore[arg-type]
    seeds = seeds or list(range(len(algorithms)))
    simulation = Simulation(algorithms, [federation or small_federation()], seeds, how, MODEL, folder)
    for _ in range(rounds):
        simulation.round()
    return simulation


def with_optimizer(algorithm: Algorithm, kind: str, rate: float | None = None) -> Algorithm:
    """The same method with every optimizer of the given kind, and every step size set where one is given."""
    names = {field.name for field in dataclasses.fields(algorithm)}
    wanted: dict[str, Any] = dict.fromkeys(("optimizer", "personal_optimizer", "server_optimizer"), kind)
    if rate is not None:
        wanted |= dict.fromkeys(("learning_rate", "personal_learning_rate"), rate)
    return dataclasses.replace(algorithm, **{name: value for name, value in wanted.items() if name in names})


def everyone(simulation: Simulation) -> Tensor:
    return torch.arange(simulation.clients).expand(simulation.trials, -1)


def personal(simulation: Simulation) -> Params:
    """[T, N, ...] without padding."""
    return simulation.model.strip(simulation.personal_models(everyone(simulation)))


def final(simulation: Simulation, trial: int) -> dict[str, Tensor]:
    """All that a trial's run came to: ν, q, every θ_i, moments included."""
    states = simulation.store.take(everyone(simulation))
    rows = states[trial] if isinstance(states, list) else tree.over(lambda leaf: leaf[trial], states)
    stacked = tree.stack(rows) if isinstance(rows, list) else rows
    server = tree.over(lambda leaf: leaf[trial], simulation.server)
    return tree.named_leaves(server, "server") | tree.named_leaves(stacked, "clients")


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def client_view(simulation: Simulation, i: int, trial: int = 0) -> tuple[Broadcast, ClientState, Batches]:
    """What client i of a simulation has at the start of the next round, on its full data."""
    server = tree.over(lambda leaf: leaf[trial], simulation.server)
    sent = simulation.algorithms[trial].broadcast(server, torch.arange(simulation.clients))
    states: Any = simulation.store.take(everyone(simulation))
    state = states[trial][i] if isinstance(states, list) else tree.over(lambda leaf: leaf[trial, i].clone(), states)
    padded = Split(*(part[trial, i] for part in simulation.data))
    data = without_padding(padded) if isinstance(states, list) else padded
    return sent._replace(weight=sent.weight[i], round=int(sent.round)), state, Batches(data, None)


def module_of(simulation: Simulation, params: Params) -> torch.nn.Sequential:
    return reference.network(simulation.model.strip(params))


def noise_like(leaf: Tensor) -> Tensor:
    return torch.rand(leaf.shape, generator=torch.Generator().manual_seed(leaf.numel())) + 0.5
