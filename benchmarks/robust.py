"""What trimming and clipping cost where every client is honest, and what they save where one of five sends garbage.

`python -m benchmarks.robust`: some ten minutes on one core. The tables are in docs/robust.md.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import torch

from perinvfl.algorithms import (
    Algorithm,
    Batches,
    Broadcast,
    ClientState,
    FedAvg,
    PerInvFL,
    Problem,
    Upload,
    hyper,
    tree,
)
from perinvfl.core.seeding import generator
from perinvfl.engine.simulation import Simulation
from perinvfl.runs.experiment import build_experiment
from perinvfl.runs.trial import Trial

SEEDS = (0, 1, 2)
HONEST = 4  # of five clients; the last one is not
ROUNDS = 100
IN_DISTRIBUTION, SHIFTED = "0.9", ("0.1", "0.3", "0.5")
AGGREGATIONS: dict[str, dict[str, float]] = {
    "the mean": {},
    "`clipping = 1`": {"clipping": 1.0},
    "`trimming = 0.2`": {"trimming": 0.2},
    "`trimming = 0.5` (median)": {"trimming": 0.5},
}
Attack = Literal["none", "noise", "reversed"]
ATTACKS: dict[Attack, str] = {
    "none": "all honest",
    "noise": "one sends normal noise, of deviation 1 in every entry",
    "reversed": "one sends its update backwards, 10 times as long",
}
DATA: dict[str, dict[str, Any]] = {
    "rc_mnist": {"benchmark": "rc_mnist", "p_train": [0.9, 0.85, 0.8, 0.75, 0.8], "train_per_client": 1000,
                 "test_per_client": 1000, "p_test": [0.1, 0.3, 0.5, 0.9]},
    "rc_mnist without colour": {"benchmark": "rc_mnist", "p_train": [0.9, 0.85, 0.8, 0.75, 0.8], "grayscale": True,
                                "train_per_client": 1000, "test_per_client": 1000, "p_test": [0.1, 0.3, 0.5, 0.9]},
    "planted": {"benchmark": "planted", "p_train": [0.95, 0.85, 0.9, 0.8, 0.85], "rows": 400,
                "p_test": [0.1, 0.3, 0.5, 0.9]},
}  # fmt: skip


class Spoils(Algorithm):
    """A client whose `harm` is 1 sends something else than its update."""

    attack: Attack
    harm: float | tuple[float, ...]

    def client(
        self, problem: Problem, broadcast: Broadcast, state: ClientState, batches: Batches
    ) -> tuple[Upload, ClientState]:
        upload, state = super().client(problem, broadcast, state, batches)
        if not self.harm or self.attack == "none":
            return upload, state
        if self.attack == "reversed":
            return upload._replace(update=tree.map(lambda leaf: -10 * leaf, upload.update)), state
        source = generator(int(broadcast.round), "garbage")
        noise = tree.map(lambda leaf: torch.randn(leaf.shape, generator=source), upload.update)
        return upload._replace(update=noise), state


@dataclass(frozen=True)
class SpoiledFedAvg(Spoils, FedAvg):
    attack: Attack = "none"
    harm: float | tuple[float, ...] = hyper(0.0, "whether a client does harm")


@dataclass(frozen=True)
class SpoiledPerInvFL(Spoils, PerInvFL):
    attack: Attack = "none"
    harm: float | tuple[float, ...] = hyper(0.0, "whether a client does harm")


METHODS: dict[str, tuple[type[Spoils], dict[str, Any]]] = {
    "FedAvg": (SpoiledFedAvg, {"learning_rate": 0.3}),
    "PerInvFL": (
        SpoiledPerInvFL,
        {"learning_rate": 0.3, "personal_learning_rate": 0.3, "penalty_weight": 10.0, "beta": 0.1},
    ),
}


ASKED = [("rc_mnist", "FedAvg"), ("rc_mnist without colour", "FedAvg"), ("planted", "FedAvg"), ("planted", "PerInvFL")]


def trial_of(data: str, seed: int) -> Trial:
    table = {
        "data": DATA[data],
        "model": {"hidden": [64]},
        "training": {"rounds": ROUNDS, "executor": "loop", "device": "cpu"},
        "seeds": [seed],
        "algorithm": {"name": "fedavg"},
    }
    return build_experiment(table).trials[0]


def measure(data: str, method: str, settings: dict[str, float], attack: Attack, seed: int) -> tuple[float, float]:
    """Percent of right answers at the honest clients: in distribution, and the mean over the shifted contexts."""
    trial, (kind, own) = trial_of(data, seed), METHODS[method]
    chosen: dict[str, Any] = {**own, **settings, "attack": attack, "harm": (0.0,) * HONEST + (1.0,)}
    algorithm = kind(**chosen)
    simulation = Simulation([algorithm], [trial.federation()], [seed], trial.training, trial.model)
    for _ in range(ROUNDS):
        simulation.round()
    scores = simulation.evaluate()
    found = scores.get("personal") or scores["global"]
    means = {case: 100 * float(found[case][0, :HONEST].mean()) for case in (IN_DISTRIBUTION, *SHIFTED)}
    return means[IN_DISTRIBUTION], fmean(means[case] for case in SHIFTED)


def main() -> None:
    for data, method in ASKED:
        print(f"\n{data}, {method}\n\n| | {' | '.join(ATTACKS.values())} |\n|{'---|' * (1 + len(ATTACKS))}")
        for name, settings in AGGREGATIONS.items():
            cells = []
            for attack in ATTACKS:
                each = [measure(data, method, settings, attack, seed) for seed in SEEDS]
                cells.append(" / ".join(f"{fmean(numbers):.1f}" for numbers in zip(*each, strict=True)))
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
