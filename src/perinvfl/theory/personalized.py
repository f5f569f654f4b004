"""Theorem 3: when does the personal model θ_i reach the error of the best personal invariant predictor?

Conclusion 1: from d − (τ + q_i) + d/(τ + q_i) contexts on, for some β. Conclusion 2: with fewer, a large β still gives
the global invariant model ν. The theorem speaks of minimisers, so these are found exactly (`minimise`); what the
algorithm's own steps reach from the same data is shown beside them.

Counting. The theorem uses Arjovsky et al.'s Theorem 9, which is about a matrix Φ of rank r and a vector w on top; IRMv1
has a scalar w, that is r = 1, which asks for d − 1 + d = 2d − 1 contexts. Each context adds one quadratic equation in
d unknowns, so d + 1 contexts are the fewest that can single out the invariant predictors.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perinvfl.algorithms import Ditto, FedAvg, PerInvFL
from perinvfl.algorithms.base import Algorithm
from perinvfl.core.hyper import hyper
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.structural import StructuralSettings, draw_contexts, draw_mechanism, sample
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.theory.common import Record, Theory, mean_and_std
from perinvfl.theory.minimise import (
    Minimum,
    irm_value,
    least_squares,
    minimise_irm,
    random_starts,
    unseen_errors,
)
from perinvfl.theory.moments import moments_federation, population, products

BETA_LIKE = "β = {:g}"


@dataclass(frozen=True)
class PersonalizedSettings:
    seeds: tuple[int, ...] = hyper((0, 1, 2, 3, 4), "one set of mechanisms and contexts each", least=0)
    clients: int = hyper(12, "number of clients; ν needs 2d − 1 of them", symbol="N", least=2)
    dimension: int = hyper(6, "dimension of x", symbol="d", least=2)
    shared: int = hyper(2, "invariant dimensions of all clients", symbol="τ", least=1)
    personal: int = hyper(2, "further invariant dimensions of each client", symbol="q", least=1)
    contexts: tuple[int, ...] = hyper((1, 2, 3, 4, 5, 6, 7, 8, 11), "contexts a client, in turn", least=1)
    beta: tuple[float, ...] = hyper((1e-3, 1.0, 10.0, 100.0, 1e6), "pulls towards ν, in turn", symbol="β", least=0)
    penalty_weight: float = hyper(1e4, "weight of the invariance penalty for the exact solver", symbol="λ", above=0)
    trained_penalty_weight: float = hyper(100.0, "the same for training, where steps must cope with it", above=0)
    starts: int = hyper(30, "random starts of the exact solver, besides the known candidates", least=1)
    tolerance: float = hyper(0.05, "a model reaches another's error when it is within this share of it", above=0)
    trained_contexts: tuple[int, ...] = hyper((2, 4, 11), "contexts for which the algorithm is trained too", least=1)
    trained_seeds: tuple[int, ...] = hyper((0, 1, 2), "seeds for which the algorithm is trained too", least=0)
    rounds: int = hyper(3000, "rounds of that training", least=1)
    learning_rates: tuple[float, ...] = hyper((0.003, 0.01), "Adam's step sizes to choose from", above=0)
    warmups: tuple[int, ...] = hyper((0, 1000), "rounds of a gentle penalty (at most 1) to choose from", least=0)

    @property
    def bound(self) -> float:
        rank = self.shared + self.personal
        return self.dimension - rank + self.dimension / rank

    def structural(self, contexts: int) -> StructuralSettings:
        return StructuralSettings(
            clients=self.clients,
            contexts=contexts,
            dimension=self.dimension,
            shared=self.shared,
            personal=self.personal,
        )


@dataclass(frozen=True)
class World:
    """One seed's moments and the known answers."""

    train: Tensor  # [N, K, d + 1, d + 1]
    tests: Tensor  # [N, cases, d + 1, d + 1]
    best: Tensor  # [N, d] the personal invariant predictor
    shared: Tensor  # [N, d] the global invariant predictor, the same for all


def world(settings: StructuralSettings, seed: int, samples: int = 0) -> World:
    """samples: 0 is the population."""
    mechanism = draw_mechanism(settings, seed)
    seen, unseen = (draw_contexts(settings, seed, unseen) for unseen in (False, True))
    train = population(mechanism, seen)
    if samples:
        train = products(*sample(mechanism, seen, samples, generator(seed, "structural", "training samples")))
    shared = mechanism.rho[0] * (torch.arange(settings.dimension) < settings.shared)
    best = mechanism.rho @ mechanism.mixing.T
    return World(train, population(mechanism, unseen), best, (mechanism.mixing @ shared).expand_as(best))


def global_minimum(here: World, weight: float, starts: int) -> Tensor:
    """[d] ν*: each client's data as a whole is one environment (glob-irm)."""
    whole = here.train.mean(1)[None]  # [1, N, d + 1, d + 1]
    known = torch.stack([here.shared[0], torch.zeros_like(here.shared[0]), least_squares(whole)[0]])[None]
    first = torch.cat([random_starts(1, starts, here.best.shape[1]), known], 1)
    none = torch.zeros(1, dtype=torch.float64)
    return minimise_irm(whole, weight, none, torch.zeros_like(here.best[:1]), first).params[0]


def personal_minimum(here: World, nu: Tensor, weight: float, beta: float, starts: int) -> Minimum:
    """θ_i* of every client (per-irm)."""
    clients, d = here.best.shape
    anchor = nu.expand(clients, d)
    known = torch.stack([here.best, anchor, torch.zeros_like(anchor), least_squares(here.train)], 1)
    first = torch.cat([random_starts(clients, starts, d), known], 1)
    pull = torch.full((clients,), beta, dtype=torch.float64)
    return minimise_irm(here.train, weight, pull, anchor, first)


def error(here: World, w: Tensor) -> float:
    return float(unseen_errors(here.tests, w.expand_as(here.best)).mean())


def ditto_minimum(here: World, nu: Tensor, pull: float) -> Tensor:
    """[N, d] minimiser of R(v; D_i) + (pull/2) ‖v − w‖²."""
    mean = here.train.mean(1)
    eye = torch.eye(nu.shape[0], dtype=nu.dtype)
    return torch.linalg.solve(2 * mean[:, :-1, :-1] + pull * eye, 2 * mean[:, :-1, -1] + pull * nu)


def run(settings: PersonalizedSettings) -> Record:
    torch.set_num_threads(1)
    rows = [row for contexts in settings.contexts for row in _exact(settings, contexts)]
    tuned = _tune(settings)
    trained = [row for contexts in settings.trained_contexts for row in _train(settings, contexts, tuned)]
    numbers: Record = {
        "bound": settings.bound,
        "bound_scalar": 2 * settings.dimension - 1,
        "fewest_by_counting": settings.dimension + 1,
        "needed_clients": settings.dimension - settings.shared + settings.dimension / settings.shared,
        "exact": rows,
        "trained": trained,
        "tuning": tuned,
    }
    return numbers | verdict(settings, numbers)


def _exact(settings: PersonalizedSettings, contexts: int) -> list[Record]:
    errors: dict[str, list[float]] = {}
    slopes: list[float] = []
    shares: list[float] = []
    for seed in settings.seeds:
        here = world(settings.structural(contexts), seed)
        nu = global_minimum(here, settings.penalty_weight, settings.starts)
        fedavg = least_squares(here.train.mean(1))
        found = {
            "ν": nu,
            "floor": here.best,
            "global invariant": here.shared,
            "FedAvg": fedavg,
            "Ditto": ditto_minimum(here, fedavg, 1.0),
        }
        for beta in settings.beta:
            minimum = personal_minimum(here, nu, settings.penalty_weight, beta, settings.starts)
            found[BETA_LIKE.format(beta)] = minimum.params
            slopes.append(float(minimum.slope.max()))
            if beta == settings.beta[0]:
                shares.append(float(minimum.share.mean()))
        for name, w in found.items():
            errors.setdefault(name, []).append(error(here, w))
    facts = {"contexts": contexts, "largest_slope": max(slopes), "starts_that_reach_it": sum(shares) / len(shares)}
    return [
        facts | {"model": name, **mean_and_std(torch.tensor(values)), "each": values} for name, values in errors.items()
    ]


def _simulate(settings: PersonalizedSettings, contexts: int, algorithms: list[Algorithm], rounds: int) -> Simulation:
    """Every algorithm on every seed, as one program, on the population."""
    worlds = [moments_federation(settings.structural(contexts), seed, exact=True) for seed in settings.trained_seeds]
    simulation = Simulation(
        [algorithm for algorithm in algorithms for _ in worlds],
        worlds * len(algorithms),
        list(settings.trained_seeds) * len(algorithms),
        Training(executor="vmap", device="cpu"),
        ModelSettings(kind="linear"),
    )
    for _ in range(rounds):
        simulation.round()
    return simulation


def _adam(rate: float) -> dict[str, Any]:
    """Adam at the server on the mean gradient; Adam at the clients would not end at the minimiser of the mean loss."""
    return {"learning_rate": 1.0, "server_optimizer": "adam", "server_learning_rate": rate}


def _perinvfl(settings: PersonalizedSettings, beta: float, rate: float, warmup: int) -> PerInvFL:
    return PerInvFL(
        **_adam(rate),
        personal_learning_rate=rate,
        personal_optimizer="adam",
        penalty_weight=settings.trained_penalty_weight,
        warmup_rounds=warmup,
        beta=beta,
    )


def _values(settings: PersonalizedSettings, contexts: int, theta: Tensor, nu: Tensor, beta: float) -> Tensor:
    """[S] mean over clients of objective (per-irm) at θ [S, N, d], with the ν [S, d] it was trained against."""
    values = []
    for seed, own, anchor in zip(settings.trained_seeds, theta.double(), nu.double(), strict=True):
        here = world(settings.structural(contexts), seed)
        pull = torch.full((settings.clients,), beta, dtype=torch.float64)
        value = irm_value(here.train, own[:, None], settings.trained_penalty_weight, pull, anchor.expand_as(own))
        values.append(value.mean() / contexts)
    return torch.stack(values)


def _tune(settings: PersonalizedSettings) -> Record:
    """Step size and warm-up with the lowest training objective, at the most contexts and the smallest β."""
    contexts, beta = max(settings.trained_contexts), settings.beta[0]
    tried = []
    for warmup in settings.warmups:
        for rate in settings.learning_rates:
            simulation = _simulate(settings, contexts, [_perinvfl(settings, beta, rate, warmup)], settings.rounds)
            theta = simulation.personal_models(simulation.everyone)["0.weight"][:, :, 0]
            value = _values(settings, contexts, theta, simulation.server.params["0.weight"][:, 0], beta)
            tried.append({"learning_rate": rate, "warmup_rounds": warmup, "training_objective": float(value.mean())})
    best = min(tried, key=lambda row: row["training_objective"])
    return {"tried": tried, "chosen": best, "contexts": contexts}


def _train(settings: PersonalizedSettings, contexts: int, tuned: Record) -> list[Record]:
    rate, warmup = tuned["chosen"]["learning_rate"], tuned["chosen"]["warmup_rounds"]
    algorithms: list[Algorithm] = [_perinvfl(settings, beta, rate, warmup) for beta in settings.beta]
    simulation = _simulate(settings, contexts, algorithms, settings.rounds * 9 // 10)
    seeds = len(settings.trained_seeds)

    def personal() -> Tensor:  # [β, S, N, d]
        models = simulation.personal_models(simulation.everyone)["0.weight"][:, :, 0]
        return models.clone().unflatten(0, (-1, seeds))  # a copy: the next round writes in the same place

    before = personal()
    for _ in range(settings.rounds - settings.rounds * 9 // 10):
        simulation.round()
    theta, nu = personal(), simulation.server.params["0.weight"][:, 0].unflatten(0, (-1, seeds))
    measured = simulation.evaluate()

    def over_seeds(kind: str) -> Tensor:  # [β, S]
        return torch.stack(list(measured[kind].values()), -1).mean((-1, -2)).unflatten(0, (-1, seeds))

    rows: list[Record] = [{"contexts": contexts, "model": "ν", **mean_and_std(over_seeds("global")[0])}]
    for place, beta in enumerate(settings.beta):
        reached = _values(settings, contexts, theta[place], nu[place], beta)
        exact = []
        for number, seed in enumerate(settings.trained_seeds):
            here = world(settings.structural(contexts), seed)
            minimum = personal_minimum(
                here, nu[place, number].double(), settings.trained_penalty_weight, beta, settings.starts
            )
            exact.append(minimum.value.mean() / contexts)
        rows.append(
            {
                "contexts": contexts,
                "model": BETA_LIKE.format(beta),
                **mean_and_std(over_seeds("personal")[place]),
                "training_objective": float(reached.mean()),
                "least_objective": float(torch.stack(exact).mean()),
                "moved_in_last_tenth": float((theta[place] - before[place]).norm(dim=-1).mean()),
            }
        )
    pulled = Ditto(**_adam(0.01), personal_learning_rate=0.01, personal_optimizer="adam", pull=1.0)
    for name, algorithm, kind in (("FedAvg", FedAvg(**_adam(0.01)), "global"), ("Ditto", pulled, "personal")):
        rival = _simulate(settings, contexts, [algorithm], settings.rounds // 2).evaluate()[kind]
        rows.append(
            {"contexts": contexts, "model": name, **mean_and_std(torch.stack(list(rival.values())).mean((0, 2)))}
        )
    return rows


def verdict(settings: PersonalizedSettings, numbers: Record) -> Record:
    table = {(row["contexts"], row["model"]): row["mean"] for row in numbers["exact"]}
    names = [BETA_LIKE.format(beta) for beta in settings.beta]
    close = 1 + settings.tolerance

    def best(contexts: int) -> float:
        return min(table[contexts, name] for name in names)

    enough = [k for k in settings.contexts if k >= settings.bound]
    few = [k for k in settings.contexts if k < settings.bound]
    reached = [k for k in settings.contexts if best(k) <= close * table[k, "floor"]]
    first = next((k for k in enough if all(m in reached for m in enough if m >= k)), None)
    at = min(enough)
    held_one = first == at
    strong = names[-1]
    falls_back = all(table[k, strong] <= close * table[k, "ν"] for k in few)
    invariant = all(table[k, "ν"] <= close * table[k, "global invariant"] for k in few)
    saved = all(table[k, strong] < table[k, names[0]] for k in few)
    one = (
        f"Conclusion 1 {'held' if held_one else 'did not hold'} at the stated number of contexts: the bound is "
        f"{settings.bound:g}, and at {at} contexts the best β leaves an error of {best(at):.2f} where the floor is "
        f"{table[at, 'floor']:.2f}; "
        + (f"the floor is reached from {first} contexts on." if first else "the floor is never reached.")
    )
    two = (
        f"Conclusion 2 {'held' if falls_back and invariant and saved else 'did not hold'}: with fewer contexts "
        f"(K = {', '.join(map(str, few))}), β = {settings.beta[-1]:g} gives "
        f"{_span([table[k, strong] for k in few])}, ν gives {_span([table[k, 'ν'] for k in few])}, the global "
        f"invariant predictor {_span([table[k, 'global invariant'] for k in few])}, and β = {settings.beta[0]:g} "
        f"{_span([table[k, names[0]] for k in few])}."
    )
    ratios = [
        row["training_objective"] / row["least_objective"] for row in numbers["trained"] if "least_objective" in row
    ]
    three = (
        f"The algorithm's own steps stopped at {min(ratios):.2f} to {max(ratios):.2f} times the least objective, "
        "so what is guaranteed for minimisers is not what they reach."
        if max(ratios) > close
        else "The algorithm's own steps reach the minimisers."
    )
    held = held_one and falls_back and invariant and saved
    verdict = "held" if held else "did not hold" if not held_one and not falls_back else "held in part"
    return {"held": verdict, "first_contexts_at_floor": first, "verdict": " ".join([one, two, three])}


def _span(values: list[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def draw(record: Record) -> Any:
    from perinvfl.theory.charts import personalized_chart

    return personalized_chart(record)


THEORY = Theory(PersonalizedSettings, run, draw)
