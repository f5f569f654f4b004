"""The mathematics behind the theory experiments, on small versions of them."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from perinvfl.algorithms import IRM, PerInvFL
from perinvfl.algorithms.base import Broadcast
from perinvfl.data.benchmarks.structural import StructuralSettings, draw_contexts, draw_mechanism, structural_federation
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from perinvfl.learning.problem import Batch, Batches
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings
from perinvfl.theory import convergence, information, personalized, remark
from perinvfl.theory.__main__ import THEORIES, main, read
from perinvfl.theory.common import fit_power_law, student_95
from perinvfl.theory.minimise import irm_value, least_squares, minimise_irm, random_starts
from perinvfl.theory.moments import moments_federation, population, products, stand_ins

SMALL = StructuralSettings(clients=4, contexts=3, dimension=4, shared=1, personal=1)
LINEAR = ModelSettings(kind="linear")


# Slopes ----------------------------------------------------------------------------------------------------------


def test_a_power_law_is_recovered_with_its_band() -> None:
    x = [2.0**k for k in range(8)]
    noise = torch.randn(8, generator=torch.Generator().manual_seed(0)) * 0.05
    fit = fit_power_law(x, [3 * v ** (-2 / 3) * math.exp(float(n)) for v, n in zip(x, noise, strict=True)])
    assert fit.low < -2 / 3 < fit.high
    assert fit.high - fit.low < 0.2
    exact = fit_power_law(x, [3 * v**-0.5 for v in x])
    assert exact.slope == pytest.approx(-0.5)
    assert exact.high - exact.low < 1e-6
    assert math.exp(exact.intercept) == pytest.approx(3)


def test_the_band_holds_the_slope_19_times_in_20() -> None:
    source = torch.Generator().manual_seed(1)
    x = [10.0, 20, 40, 80, 160, 320]
    inside = 0
    for _ in range(300):
        y = [v**-0.7 * math.exp(0.1 * float(torch.randn((), generator=source))) for v in x]
        fit = fit_power_law(x, y)
        inside += fit.low < -0.7 < fit.high
    assert 0.91 < inside / 300 < 0.985


@pytest.mark.parametrize(("freedom", "point"), [(1, 12.706), (4, 2.776), (30, 2.042)])
def test_students_t(freedom: int, point: float) -> None:
    assert student_95(freedom) == pytest.approx(point, abs=2e-3)


# Convergence -----------------------------------------------------------------------------------------------------

CONVERGENCE = convergence.ConvergenceSettings(
    clients=3, samples=20, horizons=(4, 8, 16), local_steps=(2,), server_rates=(0.5,), pilot_rounds=30, points=50
)


def constants(smoothness: float, variance: float, gap: float) -> convergence.Constants:
    return convergence.Constants(smoothness, variance, gap, torch.zeros(1), 1.0)


def test_the_step_is_that_of_the_proof() -> None:
    # L_F = 2, δ² = 3, gap = 5, R = 4, α = 0.5: C_1 = 20, C_2 = 384, C_3 = 3840.
    given = constants(2.0, 3.0, 5.0)
    far, capped = convergence.prescribed_step(10**9, 4, 0.5, given)
    assert not capped
    assert far * 0.5 * 4 == pytest.approx((20 * 0.25 / 384 / 1e9) ** (1 / 3))
    near, capped = convergence.prescribed_step(1, 4, 0.5, given)
    assert capped
    assert near * 0.5 * 4 == pytest.approx(0.5 / (math.sqrt(32 * 7) * 2))
    for horizon in (10**4, 10**9):  # with that choice every term of the bound falls at least as fast as T^(-2/3)
        ratio = convergence.bound(8 * horizon, 4, 0.5, given) / convergence.bound(horizon, 4, 0.5, given)
        assert ratio < 8 ** (-2 / 3) + 1e-9


def test_the_gradient_norm_is_that_of_the_central_objective() -> None:
    federation = convergence.heterogeneous(CONVERGENCE)
    algorithm = IRM(penalty_weight=3.0, warmup_rounds=0, rescale=False)
    simulation = Simulation([algorithm], [federation], [0], Training(executor="loop", device="cpu"), LINEAR)
    central = convergence.Central(algorithm, simulation.problem, federation.train)
    points = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    for point, squared, value in zip(points, central.squared_slopes(points), central.values(points), strict=True):
        nu = point.clone().requires_grad_()
        total = torch.zeros(())
        for x, y in zip(federation.train.x, federation.train.y, strict=True):
            scale = torch.ones((), requires_grad=True)
            risk = torch.nn.functional.binary_cross_entropy_with_logits(scale * (x @ nu), y)
            (slope,) = torch.autograd.grad(risk, scale, create_graph=True)
            total = total + (risk + 3.0 * slope.square()) / 3
        (gradient,) = torch.autograd.grad(total, nu)
        assert float(value) == pytest.approx(float(total.detach()), rel=1e-5)
        assert float(squared) == pytest.approx(float(gradient.square().sum()), rel=1e-4)


def test_smoothness_bounds_the_change_of_gradients() -> None:
    federation = convergence.heterogeneous(CONVERGENCE)
    measured = convergence.measure_constants(CONVERGENCE, federation)
    algorithm = IRM(penalty_weight=CONVERGENCE.penalty_weight, warmup_rounds=0, rescale=False)
    simulation = Simulation([algorithm], [federation], [0], Training(executor="loop", device="cpu"), LINEAR)
    central = convergence.Central(algorithm, simulation.problem, federation.train)
    source = torch.Generator().manual_seed(2)
    offsets = torch.randn(50, 4, generator=source)
    a = measured.centre + 0.5 * measured.radius * offsets / offsets.norm(dim=1, keepdim=True)
    b = a + 0.01 * torch.randn(50, 4, generator=source)
    change = (central.client_gradients(a) - central.client_gradients(b)).norm(dim=-1) / (a - b).norm(dim=1)[:, None]
    assert float(change.max()) <= 1.1 * measured.smoothness


def test_the_global_model_of_perinvfl_is_that_of_irm() -> None:
    federation = convergence.heterogeneous(CONVERGENCE)
    common: dict[str, Any] = {
        "local_steps": 3,
        "learning_rate": 0.1,
        "server_learning_rate": 0.5,
        "rescale": False,
        "warmup_rounds": 0,
    }
    models = []
    for algorithm in (IRM(penalty_weight=2.0, **common), PerInvFL(penalty_weight=2.0, beta=1.0, **common)):
        simulation = Simulation([algorithm], [federation], [0], Training(executor="loop", device="cpu"), LINEAR)
        for _ in range(5):
            simulation.round()
        models.append(simulation.server.params["0.weight"])
    assert torch.equal(*models)


def test_runs_side_by_side_are_runs_of_their_own() -> None:
    federation = convergence.heterogeneous(CONVERGENCE)
    measured = convergence.measure_constants(CONVERGENCE, federation)
    together, _ = convergence.measure(CONVERGENCE, federation, measured, 2)
    alone, _ = convergence.measure(dataclasses.replace(CONVERGENCE, horizons=(8,)), federation, measured, 2)
    assert alone[0]["mean_squared_gradient"] == pytest.approx(together[1]["mean_squared_gradient"], rel=1e-5)
    assert alone[0]["gamma"] == together[1]["gamma"]


# Structural equations --------------------------------------------------------------------------------------------


def test_moments_of_the_population_are_those_of_many_samples() -> None:
    settings = dataclasses.replace(SMALL, samples=100_000)
    federation = structural_federation(settings, 0)
    exact = population(draw_mechanism(settings, 0), draw_contexts(settings, 0, unseen=False))
    x, y = (part.unflatten(1, (3, -1)) for part in (federation.train.x, federation.train.y))
    scale = exact.diagonal(dim1=-2, dim2=-1).sqrt()
    apart = (products(x, y) - exact) / (scale[..., :, None] * scale[..., None, :])
    assert float(apart.abs().max()) < 0.03


def test_stand_ins_give_the_gradients_of_the_samples_they_replace() -> None:
    settings = dataclasses.replace(SMALL, samples=200)
    full, small = structural_federation(settings, 0), moments_federation(settings, 0, exact=False)
    assert small.train.x.shape[1] == 3 * 5
    gradients = []
    for federation in (full, small):
        algorithm = PerInvFL(penalty_weight=5.0, warmup_rounds=0, beta=0.3)
        simulation = Simulation([algorithm], [federation], [0], Training(executor="loop", device="cpu"), LINEAR)
        share = type(federation.train)(*(part[1] for part in federation.train))
        params = {"0.weight": torch.tensor([[0.3, -0.2, 0.5, 0.1]])}
        state = algorithm.init_client(params, federation.contexts)
        sent = Broadcast(params, torch.ones(()), 0)
        upload, state = algorithm.client(simulation.problem, sent, state, Batches(share, None))
        gradients.append((upload.update["0.weight"], state.personal["0.weight"]))
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_the_solvers_objective_is_the_algorithms() -> None:
    federation = moments_federation(SMALL, 0, exact=True)
    algorithm = PerInvFL(penalty_weight=7.0, warmup_rounds=0, rescale=False)
    simulation = Simulation([algorithm], [federation], [0], Training(executor="loop", device="cpu"), LINEAR)
    w = torch.tensor([0.3, -0.2, 0.5, 0.1])
    sent = Broadcast({}, torch.ones(()), 0)
    objective = algorithm.personal_objective(simulation.problem, sent, torch.ones(3))
    moments = population(draw_mechanism(SMALL, 0), draw_contexts(SMALL, 0, unseen=False))
    for client in range(4):
        share = type(federation.train)(*(part[client] for part in federation.train))
        theirs = simulation.problem.value(objective, {"0.weight": w[None]}, Batch(*share))[0]
        none = torch.zeros(1, dtype=torch.float64)
        ours = irm_value(moments[client : client + 1], w.double()[None, None], 7.0, none, none.expand(1, 4))
        assert float(ours) == pytest.approx(float(theirs), rel=1e-5)


def test_the_solver_ends_where_the_gradient_is_zero() -> None:
    here = personalized.world(SMALL, 0)
    pull, anchor = torch.full((4,), 0.5, dtype=torch.float64), here.shared
    found = minimise_irm(here.train, 10.0, pull, anchor, random_starts(4, 20, 4))
    w = found.params[:, None].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(irm_value(here.train, w, 10.0, pull, anchor).sum(), w)
    assert float(gradient.abs().max()) < 1e-4
    assert float(found.slope.max()) < 1e-5
    nothing = minimise_irm(here.train, 0.0, 0 * pull, anchor, random_starts(4, 1, 4))
    assert torch.allclose(nothing.params, least_squares(here.train), atol=1e-6)


def test_the_invariant_predictors_have_no_penalty_and_the_error_of_the_noise() -> None:
    here = personalized.world(SMALL, 0)
    none = torch.zeros(4, dtype=torch.float64)
    for w in (here.best, here.shared):
        risk = irm_value(here.train, w[:, None], 0.0, none, w)
        assert torch.allclose(risk, irm_value(here.train, w[:, None], 1e6, none, w))
    federation = structural_federation(SMALL, 0)
    noise = torch.tensor(list(federation.notes["noise_variance"].values()))  # type: ignore[attr-defined]
    assert personalized.error(here, here.best) == pytest.approx(float(noise.mean()))


def test_a_huge_pull_gives_nu_and_enough_contexts_give_the_invariant_predictor() -> None:
    settings = dataclasses.replace(SMALL, clients=8, contexts=7)
    here = personalized.world(settings, 0)
    nu = personalized.global_minimum(here, 1e4, 30)
    assert torch.allclose(nu, here.shared[0], atol=0.02)
    held = personalized.personal_minimum(here, nu, 1e4, 1e9, 20).params
    assert torch.allclose(held, nu.expand_as(held), atol=1e-3)
    free = personalized.personal_minimum(here, nu, 1e4, 1e-6, 20).params
    assert torch.allclose(free, here.best, atol=0.02)


def test_stand_ins_have_the_given_products() -> None:
    moments = population(draw_mechanism(SMALL, 1), draw_contexts(SMALL, 1, unseen=True))
    assert torch.allclose(products(*stand_ins(moments)), moments, rtol=1e-4, atol=1e-5)


# Mutual information ----------------------------------------------------------------------------------------------

INFORMATION = information.InformationSettings(seeds=(0, 1), clients=6, heterogeneous=(0, 2, 5), samples=20_000)


def test_closed_form_information_is_that_of_the_moments_and_of_samples() -> None:
    assert information.check_closed_form(INFORMATION, 0) < 1e-12
    measured = information.measure(INFORMATION, 5, 0)
    assert measured["gap"] == pytest.approx(measured["sampled_gap"], abs=0.01)
    assert measured["gap"] >= measured["p_mean_delta"] >= measured["p_delta"] > 0


def test_nobody_heterogeneous_no_gap() -> None:
    measured = information.measure(INFORMATION, 0, 0)
    assert measured["gap"] == measured["p_delta"] == 0


def test_a_correlated_pair_against_its_covariance() -> None:
    a, b, noise, c = 1.2, -0.7, 0.8, 0.5
    covariance = torch.tensor([[1, c], [c, 1]], dtype=torch.float64)
    rho = torch.tensor([a, b], dtype=torch.float64)
    cross = covariance @ rho
    moments = torch.zeros(3, 3, dtype=torch.float64)
    moments[:2, :2], moments[:2, 2], moments[2, :2], moments[2, 2] = covariance, cross, cross, rho @ cross + noise**2
    both, first, second = (
        float(information.gaussian_information(moments, torch.tensor(chosen)))
        for chosen in ([True, True], [True, False], [False, True])
    )
    gap, delta = information.correlated_gap((a, b), noise, c)
    assert gap == pytest.approx(both - first)
    assert delta == pytest.approx(second)


# Remark 1, the files and the command ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [([(1, 1), (1, 10), (100, 100)], "rises"), ([(9, 10), (1, 2)], "falls"), ([(1, 5), (2, 9)], "neither")],
)
def test_direction(ranges: list[tuple[float, float]], expected: str) -> None:
    assert remark.direction([{"from": low, "to": high} for low, high in ranges]) == expected


def test_errors_that_differ_by_chance_are_not_told_apart() -> None:
    best = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert remark.not_told_apart(best, best)
    assert remark.not_told_apart(best + torch.tensor([0.5, -0.4, 0.6, -0.3]), best)
    assert not remark.not_told_apart(best + 0.5, best)


@pytest.mark.parametrize("name", THEORIES)
def test_every_experiment_has_a_file(name: str) -> None:
    found, settings = read(Path(__file__).parents[2] / "experiments" / "theory" / f"{name}.toml")
    assert found == name
    assert isinstance(settings, THEORIES[name].settings)


def test_the_command_writes_a_record_and_a_figure(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    file = tmp_path / "little.toml"
    file.write_text('experiment = "information"\nseeds = [0, 1]\nclients = 4\nheterogeneous = [0, 2]\nsamples = 100\n')
    assert main([str(file), "--out", str(tmp_path)]) == 0
    assert '"verdict"' in (tmp_path / "little.json").read_text(encoding="utf-8")
    assert (tmp_path / "theory-little.svg").stat().st_size > 1000
    assert (tmp_path / "theory-little.png").stat().st_size > 1000
    assert main([str(file), "--out", str(tmp_path), "--redraw"]) == 0


def test_an_unknown_experiment_is_answered(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('experiment = "informtion"')
    with pytest.raises(UserError, match="did you mean information"):
        read(file)


def test_a_small_personalized_run_ends_in_a_verdict() -> None:
    settings = personalized.PersonalizedSettings(
        seeds=(0, 1),
        clients=8,
        dimension=4,
        shared=1,
        personal=1,
        contexts=(2, 7),
        beta=(1e-3, 1e6),
        starts=10,
        trained_contexts=(2,),
        trained_seeds=(0, 1),
        rounds=20,
        learning_rates=(0.01,),
        warmups=(0,),
    )
    record = personalized.run(settings)
    assert record["bound"] == 4
    assert record["first_contexts_at_floor"] == 7
    assert "Conclusion 1" in record["verdict"]
