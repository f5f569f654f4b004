"""What is compared, with which settings; imports nothing, since it is read in the other projects' environments too."""

from dataclasses import dataclass, field, replace
from typing import Any

CLIENTS, CLASSES, ALPHA = 10, 10, 0.1
TRAIN, TEST = 400, 160  # images of a client: all are of one size, so that an epoch is as many steps for each
PIXELS, HIDDEN = 196, 64
COMMITS = {
    "PFLlib": "d832e76f6a23b833038949ec1e4fdefe63a4d350",
    "FL-bench": "06e658bca5af6ce732e25bb7c0f8be321e14a85e",
}


@dataclass(frozen=True)
class Regime:
    """How clients train."""

    name: str
    rounds: int
    batch: int  # images; all of a client's make a round the same for everyone, to the rounding
    epochs: int
    rate: float
    seeds: tuple[int, ...]

    @property
    def steps(self) -> int:
        return self.epochs * TRAIN // self.batch


FULL = Regime("full batches", rounds=40, batch=TRAIN, epochs=5, rate=0.1, seeds=(0,))
MINI = Regime("mini-batches", rounds=60, batch=TRAIN // 10, epochs=1, rate=0.1, seeds=(0, 1, 2))
MANY_SEEDS = (0, 1, 2, 3, 4, 5, 7, 8, 11, 17)  # the first ten whose partitions leave enough images to every client
MENDED, SAME_BATCHES = ", mended", ", same batches"  # ends of names
REGIMES = {regime.name: regime for regime in (FULL, MINI)}


@dataclass(frozen=True)
class Method:
    """One method, with its settings here and in the other projects; None: not there."""

    algorithm: str
    ours: dict[str, Any]
    pfllib: dict[str, Any] | None  # what main.py's options set
    flbench: dict[str, Any] | None  # overrides of config/defaults.yaml, "method" among them
    measured: dict[str, str] = field(default_factory=dict)  # what a project's figure is of, if not what clients use
    mended: bool = False  # FL-bench's own, with a mistake mended while it runs
    same_batches: bool = False  # FL-bench's own, given the batches that are drawn here
    seeds: tuple[int, ...] = ()  # where they are not the regime's
    partition: int | None = None  # the seed of partition and first weights for all seeds, which draw batches alone

    @property
    def runs_here(self) -> bool:
        """Else it is compared with a run of another name, `name_here`."""
        return not (self.mended or self.same_batches)


def name_here(name: str) -> str:
    return name.removesuffix(MENDED).removesuffix(SAME_BATCHES)


def methods(regime: Regime) -> dict[str, Method]:
    steps, epochs, rate = regime.steps, regime.epochs, regime.rate
    base = {"learning_rate": rate, "local_steps": steps}
    own = {**base, "personal_learning_rate": rate}
    found = {
        "FedAvg": Method("fedavg", base, {"algorithm": "FedAvg"}, {"method": "fedavg"}),
        "FedProx": Method(
            "fedprox",
            {**base, "mu": 0.1},
            {"algorithm": "FedProx", "mu": 0.1},
            {"method": "fedprox", "fedprox.mu": 0.1},
        ),
        # FL-bench's SCAFFOLD takes one batch in an epoch.
        "SCAFFOLD": Method(
            "scaffold", base, {"algorithm": "SCAFFOLD"}, {"method": "scaffold", "common.local_epoch": steps}
        ),
        "FedPer": Method("fedper", base, {"algorithm": "FedPer"}, {"method": "fedper"}),
        "FedRep": Method(
            "fedrep",
            {**own, "personal_steps": steps},
            {"algorithm": "FedRep", "plocal_epochs": epochs},
            {"method": "fedrep", "common.local_epoch": 2 * epochs, "fedrep.train_body_epoch": epochs},
        ),
        "Ditto": Method(
            "ditto",
            {**own, "personal_steps": steps, "pull": 0.5},
            {"algorithm": "Ditto", "plocal_epochs": epochs, "mu": 0.5},
            {"method": "ditto", "ditto.pers_epoch": epochs, "ditto.lamda": 0.5},
        ),
        "APFL": Method(
            "apfl",
            {**own, "mixing": 0.5},
            {"algorithm": "APFL", "alpha": 0.5},
            {"method": "apfl", "apfl.alpha": 0.5},
        ),
        "pFedMe": _pfedme(steps),
    }
    if regime is MINI:
        del found["pFedMe"]  # five times the steps, and full batches tell all
        return found | _sampled(steps, rate)
    mended = {name + MENDED: replace(found[name], pfllib=None, mended=True) for name in ("SCAFFOLD", "pFedMe")}
    return found | mended  # docs/parity.md says what is mended


def _pfedme(steps: int) -> Method:
    """PFLlib shrinks θ by mu = 0.001, which no option sets; the squared norm has a gradient of twice its weight."""
    return Method(
        "pfedme",
        {
            "learning_rate": 0.05,
            "local_steps": steps,
            "personal_steps": 5,
            "personal_learning_rate": 0.1,
            "pull": 1.0,
            "l2": 0.0005,
        },
        {"algorithm": "pFedMe", "local_learning_rate": 0.05, "p_learning_rate": 0.1, "lamda": 1.0, "beta": 1.0},
        {
            "method": "pfedme",
            "optimizer.lr": 0.05,
            "pfedme.pers_lr": 0.1,
            "pfedme.lamda": 1.0,
            "pfedme.beta": 1.0,
            "pfedme.mu": 0.001,
            "pfedme.k": 5,
        },
        measured={"PFLlib": "global"},
    )


def _sampled(steps: int, rate: float) -> dict[str, Method]:
    """Methods that draw several batches for a step, or a share of the data: with mini-batches only."""
    base = {"learning_rate": rate, "local_steps": steps}
    found = _per_fedavg(base, rate)
    same = {name + SAME_BATCHES: replace(method, pfllib=None, same_batches=True) for name, method in found.items()}
    fedala = Method(
        "fedala",
        {**base, "weight_steps": 8, "weight_rate": 1.0},
        {"algorithm": "FedALA", "rand_percent": 80, "layer_idx": 2, "eta": 1.0},
        {"method": "fedala", "fedala.rand_percent": 0.8, "fedala.layer_idx": 2, "fedala.eta": 1.0},
    )
    hessian_free = found["Per-FedAvg, Hessian-free"]  # whose largest difference with batches of its own was at seed 7
    redrawn = replace(hessian_free, seeds=tuple(range(100, 110)), partition=7)
    return {**found, "Per-FedAvg, Hessian-free, seed 7 redrawn": redrawn, **same, "FedALA": fedala}


def _per_fedavg(base: dict[str, Any], rate: float) -> dict[str, Method]:
    """Two variants."""
    return {
        # PFLlib trains twice in a round, and halves batches of twice the size; both step sizes are the learning rate.
        "Per-FedAvg": Method(
            "per_fedavg",
            {**base, "personal_learning_rate": rate},
            {"algorithm": "PerAvg", "beta": rate},
            {"method": "perfedavg", "common.local_epoch": 2, "perfedavg.beta": rate},
            measured={"FL-bench": "global"},
            seeds=MANY_SEEDS,
        ),
        "Per-FedAvg, Hessian-free": Method(
            "per_fedavg",
            {
                **base,
                "local_steps": 9,
                "personal_learning_rate": rate,
                "variant": "hessian-free",
                "difference": 0.001,
            },
            None,
            {
                "method": "perfedavg",
                "common.local_epoch": 3,
                "perfedavg.beta": rate,
                "perfedavg.version": "hf",
                "perfedavg.delta": 0.001,
            },
            measured={"FL-bench": "global"},
            seeds=MANY_SEEDS,
        ),
    }
