"""Remark 1: "the less training contexts a client has, the smaller the value of β should be".

On the structural equations: exact minimisers over a grid of β, from the population and from few samples. On the
coloured digits: PerInvFL trained as in experiments/demo.toml but smaller, with 1, 2 or 4 contexts a client around the
same mean. The best β is the one with the lowest error (highest accuracy) on unseen contexts, mean over seeds.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms import PerInvFL
from perinvfl.core.hyper import hyper
from perinvfl.data.benchmarks.digits import DigitSettings, digit_federation
from perinvfl.data.benchmarks.structural import StructuralSettings
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.theory.common import Record, Theory, student_95
from perinvfl.theory.personalized import error, global_minimum, personal_minimum, world


@dataclass(frozen=True)
class RemarkSettings:
    seeds: tuple[int, ...] = hyper((0, 1, 2, 3, 4), "one set of mechanisms and contexts each", least=0)
    clients: int = hyper(12, "number of clients of the structural equations", symbol="N", least=2)
    contexts: tuple[int, ...] = hyper((1, 2, 4, 6, 8, 11), "contexts a client, in turn", least=1)
    beta: tuple[float, ...] = hyper((1e-2, 1.0, 3.0, 10.0, 30.0, 100.0, 1e4), "grid of β", least=0)
    penalty_weight: float = hyper(100.0, "weight of the invariance penalty", symbol="λ", above=0)
    samples: int = hyper(500, "samples a context, where not the population", least=8)
    starts: int = hyper(12, "random starts of the exact solver", least=1)
    digit_seeds: tuple[int, ...] = hyper((0, 1, 2), "of images, noise and weights", least=0)
    digit_contexts: tuple[int, ...] = hyper((1, 2, 4), "contexts a client, in turn: 1, 2 or 4", least=1, most=4)
    digit_beta: tuple[float, ...] = hyper((1.0, 1e3, 1e4, 1e5), "grid of β for the digits", least=0)
    images: int = hyper(5000, "training images a client", least=8)
    rounds: int = hyper(80, "rounds, of which `warmup` with a gentle penalty", least=1)
    warmup: int = hyper(50, "rounds with a gentle penalty", least=0)


SPREADS: dict[int, tuple[float, ...]] = {1: (0.0,), 2: (-0.1, 0.1), 4: (-0.1, -0.05, 0.05, 0.1)}
CENTRES = (0.9, 0.85, 0.8, 0.75)


def run(settings: RemarkSettings) -> Record:
    torch.set_num_threads(1)
    rows: list[Record] = []
    for data, samples in (("population", 0), (f"{settings.samples} samples a context", settings.samples)):
        for contexts in settings.contexts:
            table = _structural(settings, contexts, samples)
            rows += _rows(data, contexts, settings.beta, table)
    for contexts in settings.digit_contexts:
        rows += _rows("RC-MNIST", contexts, settings.digit_beta, 1 - _digits(settings, contexts))
    numbers: Record = {"rows": rows, "best": _best(rows)}
    return numbers | verdict(numbers)


def _structural(settings: RemarkSettings, contexts: int, samples: int) -> Tensor:
    """[S, β] error on unseen contexts."""
    errors = []
    for seed in settings.seeds:
        here = world(StructuralSettings(clients=settings.clients, contexts=contexts), seed, samples)
        nu = global_minimum(here, settings.penalty_weight, settings.starts)
        errors.append(
            [
                error(here, personal_minimum(here, nu, settings.penalty_weight, beta, settings.starts).params)
                for beta in settings.beta
            ]
        )
    return torch.tensor(errors)


def _digits(settings: RemarkSettings, contexts: int) -> Tensor:
    """[S, β] accuracy, mean over the spectrum and the clients."""
    p_train = tuple(tuple(centre + shift for shift in SPREADS[contexts]) for centre in CENTRES)
    data = DigitSettings(p_train=p_train, train_per_client=settings.images, test_per_client=1000)
    table = []
    for seed in settings.digit_seeds:
        federation = digit_federation("rc_mnist", data, seed)
        algorithms = [
            PerInvFL(
                learning_rate=1.0,
                server_optimizer="adam",
                server_learning_rate=0.003,
                personal_optimizer="adam",
                personal_learning_rate=0.001,
                l2=4e-4,
                penalty_weight=1e4,
                warmup_rounds=settings.warmup,
                beta=beta,
            )
            for beta in settings.digit_beta
        ]
        simulation = Simulation(
            algorithms,
            [federation],
            [seed] * len(algorithms),
            Training(executor="loop", device="cpu", batch_size=1000),
            ModelSettings(hidden=(128, 128)),
        )
        for _ in range(settings.rounds):
            simulation.round()
        measured = simulation.evaluate()["personal"]
        table.append(torch.stack([measured[case] for case in federation.spectrum]).mean((0, 2)))
    return torch.stack(table)


def _rows(data: str, contexts: int, grid: tuple[float, ...], table: Tensor) -> list[Record]:
    """table [S, β] of errors."""
    each = [grid[int(place)] for place in table.argmin(1)]
    lowest = int(table.mean(0).argmin())
    return [
        {
            "data": data,
            "contexts": contexts,
            "beta": beta,
            "error": float(column.mean()),
            "std": float(column.std()) if len(column) > 1 else 0.0,
            "near_best": not_told_apart(column, table[:, lowest]),
            "best_of_each_seed": each,
        }
        for beta, column in zip(grid, table.T, strict=True)
    ]


def not_told_apart(errors: Tensor, best: Tensor) -> bool:
    """Within a hundredth of the best mean error (flat ends of a curve), or within the 95 % band of the difference."""
    apart = (errors - best).double()
    margin = 0.01 * float(best.mean())
    if len(apart) > 1:
        margin = max(margin, student_95(len(apart) - 1) * float(apart.std()) / len(apart) ** 0.5)
    return float(apart.mean()) <= margin


def _best(rows: list[Record]) -> list[Record]:
    """For each data and number of contexts, the β of the lowest mean error, and those not told apart from it."""
    best = []
    for data, contexts in dict.fromkeys((row["data"], row["contexts"]) for row in rows):
        mine = [row for row in rows if (row["data"], row["contexts"]) == (data, contexts)]
        low = min(mine, key=lambda row: row["error"])
        near = [row["beta"] for row in mine if row["near_best"]]
        best.append(
            {
                "data": data,
                "contexts": contexts,
                "beta": low["beta"],
                "from": min(near),
                "to": max(near),
                "error": low["error"],
                "of_each_seed": low["best_of_each_seed"],
            }
        )
    return best


def direction(best: list[Record]) -> str:
    """ "rises" if the best β rises with the number of contexts (Remark 1), "falls", or "neither" can be told.

    Only pairs of context numbers whose near-best ranges do not overlap count.
    """
    rises = falls = 0
    for place, fewer in enumerate(best):
        for more in best[place + 1 :]:
            rises += fewer["to"] < more["from"]
            falls += fewer["from"] > more["to"]
    return "rises" if rises and not falls else "falls" if falls and not rises else "neither"


def verdict(numbers: Record) -> Record:
    kinds = list(dict.fromkeys(row["data"] for row in numbers["best"]))
    directions = {kind: direction([row for row in numbers["best"] if row["data"] == kind]) for kind in kinds}
    words = {
        "rises": "the best β rises with the number of contexts, as Remark 1 says",
        "falls": "the best β falls as the number of contexts grows, the opposite of Remark 1",
        "neither": "no direction can be told from these seeds",
    }
    parts = []
    for kind in kinds:
        listed = ", ".join(f"{row['beta']:g} at {row['contexts']}" for row in numbers["best"] if row["data"] == kind)
        parts.append(f"{kind}: {words[directions[kind]]} ({listed} contexts).")
    found = set(directions.values())
    held = "held" if found == {"rises"} else "did not hold" if "rises" not in found else "inconclusive"
    start = {"held": "Remark 1 held.", "did not hold": "Remark 1 did not hold.", "inconclusive": "Inconclusive."}[held]
    return {"held": held, "directions": directions, "verdict": " ".join([start, *parts])}


def draw(record: Record) -> Any:
    from perinvfl.theory.charts import remark_chart

    return remark_chart(record)


THEORY = Theory(RemarkSettings, run, draw)
