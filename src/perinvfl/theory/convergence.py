"""Theorem 2 and Corollary 1: mean over t of ‖∇L(ν_t)‖² falls at least as fast as T^(−2/3) with the steps prescribed.

The problem is smooth and non-convex: logistic loss of a linear model with IRMv1's penalty, on clients whose inputs and
labels follow different laws. The steps are those of the theorem's proof: γ̂ = αγR, chosen from the horizon T and from
L_F, δ_L and L(ν_0) − L(ν_T). These are measured, as the proof's constants must be known beforehand:

- L_F: the largest eigenvalue, in size, of any client's exact Hessian, over points drawn in the ball around the path of
  a pilot run (and over that path); afterwards every run is checked to have stayed in that ball.
- δ_L²: the largest mean over clients of ‖∇L_i − ∇L‖² over the same points.
- L(ν_0) − L(ν_T): with the lowest L of the pilot run in place of L(ν_T), so not too small.

The global model of PerInvFL does not depend on its personal models and is that of `IRM`, which is what runs here (a
test compares the two). Every horizon is a trial of its own, with its own step size; trials of one R are run side by
side as one program, and what a trial does after its horizon is not looked at.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from perinvfl.algorithms import IRM
from perinvfl.algorithms.base import Broadcast
from perinvfl.core.hyper import hyper
from perinvfl.core.seeding import generator
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.problem import Batch, Problem, functional_gradient
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.theory.common import Record, Theory, fit_power_law

RATE = -2 / 3


@dataclass(frozen=True)
class ConvergenceSettings:
    seed: int = hyper(0, "of the data and of ν_0", least=0)
    clients: int = hyper(6, "number of clients", symbol="N", least=2)
    samples: int = hyper(60, "samples a client", least=2)
    dimension: int = hyper(4, "dimension of x", symbol="d", least=1)
    spread: float = hyper(2.0, "how much the clients' labelling rules differ, against what they share", least=0)
    penalty_weight: float = hyper(1.0, "weight of the invariance penalty", symbol="λ", least=0)
    horizons: tuple[int, ...] = hyper((150, 300, 600, 1200, 2400, 4800), "rounds, a run each", symbol="T", least=1)
    local_steps: tuple[int, ...] = hyper((1, 5, 10), "local steps, in turn", symbol="R", least=1)
    server_rates: tuple[float, ...] = hyper((0.5, 1.0), "server step sizes, in turn", symbol="α", above=0, most=1)
    pilot_rounds: int = hyper(3000, "rounds of the run that measures the constants", least=1)
    points: int = hyper(2000, "points at which Hessians are computed", least=1)


@dataclass(frozen=True)
class Constants:
    smoothness: float  # L_F
    variance: float  # δ_L²
    gap: float  # L(ν_0) − L(ν_T)
    centre: Tensor  # [d] of the ball in which they were measured
    radius: float


def heterogeneous(settings: ConvergenceSettings) -> Federation:
    """Logistic data, each client with its own mean of x and its own labelling rule."""
    source = generator(settings.seed, "theory", "convergence")
    n, m, d = settings.clients, settings.samples, settings.dimension
    common = torch.randn(d, generator=source)
    rules = common + settings.spread * torch.randn(n, d, generator=source)
    x = torch.randn(n, m, d, generator=source) + 0.5 * torch.randn(n, 1, d, generator=source)
    y = (torch.rand(n, m, generator=source) < torch.sigmoid(torch.einsum("nmd,nd->nm", x, rules))).float()
    train = Split(x, y, torch.zeros(n, m, dtype=torch.int64))
    return Federation("heterogeneous", "binary", 1, 1, train, {}, ())


def prescribed_step(horizon: int, steps: int, alpha: float, constants: Constants) -> tuple[float, bool]:
    """γ of the proof of Theorem 2 (γ̂ = αγR), and whether the bound γ_0 is what limits it."""
    smooth, variance = constants.smoothness, constants.variance
    cap = alpha / ((32 * (steps + 3)) ** 0.5 * smooth)  # γ_0
    c1, c2, c3 = 4 * constants.gap, 32 * variance * smooth**2, 32 * (1 + steps) * variance * smooth**3
    chosen = min((c1 * alpha**2 / (c3 * horizon)) ** (1 / 4), (c1 * alpha**2 / (c2 * horizon)) ** (1 / 3))
    return min(cap, chosen) / (alpha * steps), chosen > cap


def bound(horizon: int, steps: int, alpha: float, constants: Constants) -> float:
    """C_1/(γ̂T) + C_2γ̂²/α² + C_3γ̂³/α²: the right-hand side before the proof's last step."""
    hat = prescribed_step(horizon, steps, alpha, constants)[0] * alpha * steps
    smooth, variance = constants.smoothness, constants.variance
    c1, c2, c3 = 4 * constants.gap, 32 * variance * smooth**2, 32 * (1 + steps) * variance * smooth**3
    return c1 / (hat * horizon) + c2 * hat**2 / alpha**2 + c3 * hat**3 / alpha**2


class Central:
    """L(ν) = (1/N) Σ_i L_IRM^i(ν), from the algorithm's own objective."""

    def __init__(self, algorithm: IRM, problem: Problem, train: Split) -> None:
        problem = replace(problem, gradient_of=functional_gradient)
        sent = Broadcast({}, torch.ones(()), 0)
        objective = algorithm.global_objective(problem, sent)

        def value(nu: Tensor, *share: Tensor) -> Tensor:  # [d] and one client's (x, y, context)
            return problem.value(objective, {"0.weight": nu[None]}, Batch(*share))[0]

        def gradient(nu: Tensor, *share: Tensor) -> Tensor:
            objective = algorithm.global_objective(problem, sent)
            return problem.gradient(objective, {"0.weight": nu[None]}, Batch(*share))[0]["0.weight"][0]

        over_clients = (None, 0, 0, 0)
        over_points = (0, None, None, None)
        self._train = train
        self._value, self._gradient, self._hessian = (
            torch.vmap(torch.vmap(f, over_clients), over_points, chunk_size=200)
            for f in (value, gradient, torch.func.jacrev(torch.func.grad(value)))
        )

    def values(self, points: Tensor) -> Tensor:
        """[P] L at points [P, d]."""
        return self._value(points, *self._train).mean(1)

    def client_gradients(self, points: Tensor) -> Tensor:
        """[P, N, d]"""
        return self._gradient(points, *self._train)

    def squared_slopes(self, points: Tensor) -> Tensor:
        """[P] ‖∇L‖²."""
        return self.client_gradients(points).mean(1).square().sum(-1)

    def smoothness(self, points: Tensor) -> float:
        hessians = self._hessian(points, *self._train)  # [P, N, d, d]
        return float(torch.linalg.eigvalsh(hessians).abs().max())


def measure_constants(settings: ConvergenceSettings, federation: Federation) -> Constants:
    algorithm = IRM(learning_rate=0.05, penalty_weight=settings.penalty_weight, warmup_rounds=0, rescale=False)
    simulation = Simulation([algorithm], [federation], [settings.seed], _training(), ModelSettings(kind="linear"))
    central = Central(algorithm, simulation.problem, federation.train)
    path = [_nu(simulation)]
    for _ in range(settings.pilot_rounds):
        simulation.round()
        path.append(_nu(simulation))
    walked = torch.cat(path)  # [rounds + 1, d]
    centre = (walked.amin(0) + walked.amax(0)) / 2
    radius = 1.25 * float((walked - centre).norm(dim=1).max())  # room for other step sizes
    source = generator(settings.seed, "theory", "points")
    direction = torch.randn(settings.points, settings.dimension, generator=source)
    length = torch.rand(settings.points, 1, generator=source) ** (1 / settings.dimension)
    inside = centre + radius * length * direction / direction.norm(dim=1, keepdim=True)
    points = torch.cat([inside, walked[:: max(1, len(walked) // 200)]])
    gradients = central.client_gradients(points)
    variance = (gradients - gradients.mean(1, keepdim=True)).square().sum(-1).mean(1).max()
    values = central.values(walked)
    return Constants(central.smoothness(points), float(variance), float(values[0] - values.min()), centre, radius)


def _training(executor: Literal["vmap", "loop"] = "loop") -> Training:
    return Training(executor=executor, device="cpu")


def _nu(simulation: Simulation) -> Tensor:
    """[T, d]"""
    return simulation.server.params["0.weight"][:, 0].clone()


def measure(
    settings: ConvergenceSettings, federation: Federation, constants: Constants, steps: int
) -> tuple[list[Record], float]:
    """One row for each α and horizon, and the farthest any run went from the centre of the ball, over its radius."""
    asked = [(alpha, horizon) for alpha in settings.server_rates for horizon in settings.horizons]
    chosen = [prescribed_step(horizon, steps, alpha, constants) for alpha, horizon in asked]
    algorithms = [
        IRM(
            local_steps=steps,
            learning_rate=rate,
            server_learning_rate=alpha,
            penalty_weight=settings.penalty_weight,
            warmup_rounds=0,
            rescale=False,
        )
        for (alpha, _), (rate, _) in zip(asked, chosen, strict=True)
    ]
    trials = len(asked)
    simulation = Simulation(
        algorithms, [federation], [settings.seed] * trials, _training("vmap"), ModelSettings(kind="linear")
    )
    central = Central(algorithms[0], simulation.problem, federation.train)
    horizons = torch.tensor([horizon for _, horizon in asked])
    total, farthest = torch.zeros(trials, dtype=torch.float64), 0.0
    last = torch.zeros(trials)
    for t in range(max(settings.horizons)):
        running = t < horizons
        nu = _nu(simulation)
        slope = central.squared_slopes(nu)
        total += slope * running
        last = torch.where(running, central.values(nu) if bool((horizons == t + 1).any()) else last, last)
        farthest = max(farthest, float((nu - constants.centre).norm(dim=1)[running].max()))
        simulation.round()
    rows = [
        {
            "R": steps,
            "alpha": alpha,
            "T": horizon,
            "gamma": rate,
            "limited_by_gamma_0": capped,
            "mean_squared_gradient": float(total[place] / horizon),
            "bound": bound(horizon, steps, alpha, constants),
            "loss_at_end": float(last[place]),
        }
        for place, ((alpha, horizon), (rate, capped)) in enumerate(zip(asked, chosen, strict=True))
    ]
    return rows, farthest / constants.radius


def run(settings: ConvergenceSettings) -> Record:
    torch.set_num_threads(1)
    federation = heterogeneous(settings)
    constants = measure_constants(settings, federation)
    rows: list[Record] = []
    farthest = 0.0
    for steps in settings.local_steps:
        measured, far = measure(settings, federation, constants, steps)
        rows += measured
        farthest = max(farthest, far)
    fits = []
    for steps in settings.local_steps:
        for alpha in settings.server_rates:
            mine = [row for row in rows if row["R"] == steps and row["alpha"] == alpha]
            fit = fit_power_law([row["T"] for row in mine], [row["mean_squared_gradient"] for row in mine])
            free = [row for row in mine if not row["limited_by_gamma_0"]]
            fits.append({"R": steps, "alpha": alpha, **fit._asdict(), "free_slope": _free_slope(free)})
    numbers: Record = {
        "L_F": constants.smoothness,
        "delta_L_squared": constants.variance,
        "gap": constants.gap,
        "farthest_over_radius": farthest,
        "rows": rows,
        "fits": fits,
    }
    return numbers | verdict(numbers)


def _free_slope(rows: list[Record]) -> float | None:
    """The slope over the horizons where the step is the formula's and not γ_0; None where there are too few."""
    if len(rows) < 3:
        return None
    return fit_power_law([row["T"] for row in rows], [row["mean_squared_gradient"] for row in rows]).slope


def verdict(numbers: Record) -> Record:
    fits, rows = numbers["fits"], numbers["rows"]
    below = all(row["mean_squared_gradient"] <= row["bound"] for row in rows)
    inside = numbers["farthest_over_radius"] <= 1
    slopes = f"{max(f['slope'] for f in fits):.3f} to {min(f['slope'] for f in fits):.3f}"
    at_least = [f["low"] <= RATE for f in fits]
    slower = sum(f["low"] > RATE for f in fits)
    if not inside:
        held = "inconclusive"
    else:
        held = "held" if below and all(at_least) else "inconclusive" if below else "did not hold"
    text = {
        "held": "The rate held",
        "inconclusive": "Inconclusive",
        "did not hold": "The bound did not hold",
    }[held]
    ratio = [row["mean_squared_gradient"] / row["bound"] for row in rows]
    verdict = (
        f"{text}: the fitted slopes are {slopes} where the upper bound's is {RATE:.3f} "
        f"({sum(at_least)} of {len(fits)} confidence bands reach {RATE:.3f} or steeper, {slower} are shallower), and "
        f"the mean squared gradient is {min(ratio):.1e} to {max(ratio):.1e} of the proof's bound in all {len(rows)} "
        "runs; a steeper slope is consistent with an upper bound."
    )
    free = [f["free_slope"] for f in fits if f["free_slope"] is not None]
    if free:
        verdict += (
            f" Where the formula and not γ_0 sets the step (3 horizons or more), the slopes are {max(free):.3f} to "
            f"{min(free):.3f}."
        )
    return {"held": held, "verdict": verdict}


def draw(record: Record) -> Any:
    from perinvfl.theory.charts import convergence_chart

    return convergence_chart(record)


THEORY = Theory(ConvergenceSettings, run, draw)
