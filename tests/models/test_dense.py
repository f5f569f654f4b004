"""Forward and backward written out, against automatic differentiation of the same network."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.learning.direct import batched_gradient
from perinvfl.learning.problem import Batch, Gradient, functional_gradient
from perinvfl.models import dense
from perinvfl.models.base import Model, Precision
from perinvfl.models.fused import units
from perinvfl.models.mlp import mlp

TRIALS, CLIENTS, SAMPLES = 3, 2, 40


@pytest.fixture(params=["operations", "kernels"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where tensors lie. Kernels run on a GPU, or step by step where there is none, and here for small layers too."""
    if request.param == "operations":
        return "cpu"
    monkeypatch.setattr(units, "WORTH", 0)
    if torch.cuda.is_available():
        return "cuda"
    from perinvfl.models.fused import unit_kernels

    monkeypatch.setattr(units, "kernels", lambda: unit_kernels)
    monkeypatch.setattr(dense, "pays", lambda x, weight: True)
    return "cpu"


def objective(logits: Tensor, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    losses = (logits - y[:, None]).square().sum(1)
    return (losses * (1 + context)).mean(), losses.max()


def models(model: Model, widths: tuple[int, ...]) -> Params:
    """[TRIALS, CLIENTS, ...] with biases that are not zero, except for units that only pad."""
    drawn = [model.init(torch.Generator().manual_seed(seed)) for seed in range(TRIALS * CLIENTS)]
    params = {name: torch.stack([one[name] for one in drawn]).unflatten(0, (TRIALS, CLIENTS)) for name in drawn[0]}
    draw = torch.Generator().manual_seed(9)
    for layer, width in enumerate(widths[1:]):
        if f"{layer}.bias" in params:
            params[f"{layer}.bias"][..., :width] = torch.randn(TRIALS, CLIENTS, width, generator=draw) / 5
    return params


def of(gradient: Gradient, model: Model):  # type: ignore[no-untyped-def]
    return lambda params, x, y, context: gradient(model, objective, params, Batch(x, y, context))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [(7, 30, 20, 1), (7, 32, 16, 1), (7, 5, 3), (6, 2), (6, 1), (12, 390, 390, 1)])
@pytest.mark.parametrize("bytes", [False, True])
def test_gradients_are_those_of_automatic_differentiation(
    device: str, widths: tuple[int, ...], bias: bool, bytes: bool
) -> None:
    model = mlp(widths, bias, "float32")
    params = {name: leaf.to(device) for name, leaf in models(model, widths).items()}
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(CLIENTS, SAMPLES, widths[0], generator=draw)
    if bytes:
        x = (255 * x).to(torch.uint8)
    y = torch.rand(TRIALS, CLIENTS, SAMPLES, generator=draw).round()
    context = torch.randint(2, (CLIENTS, SAMPLES), generator=draw)
    x, y, context = x.to(device), y.to(device), context.to(device)

    shared = (0, None, 0, None)
    batched, reference = (
        torch.vmap(torch.vmap(of(gradient, model)), in_dims=shared)(params, x, y, context)
        for gradient in (batched_gradient, functional_gradient)
    )
    close(batched, reference)

    def each(part: Tensor) -> Tensor:
        return part.expand(TRIALS, *part.shape).flatten(0, 1)

    flat = {name: leaf.flatten(0, 1) for name, leaf in params.items()}
    apart = torch.vmap(of(batched_gradient, model))(flat, each(x), y.flatten(0, 1), each(context))
    close(apart, ({name: leaf.flatten(0, 1) for name, leaf in reference[0].items()}, reference[1].flatten(0, 1)))

    alone = of(batched_gradient, model)({name: leaf[0] for name, leaf in flat.items()}, x[0], y[0, 0], context[0])
    close(alone, ({name: leaf[0, 0] for name, leaf in reference[0].items()}, reference[1][0, 0]))


def close(got: tuple[Params, Tensor], wanted: tuple[Params, Tensor]) -> None:
    assert list(got[0]) == list(wanted[0])
    for name, leaf in wanted[0].items():
        assert torch.allclose(got[0][name], leaf, atol=1e-5), name
    assert torch.allclose(got[1], wanted[1], atol=1e-5)


def test_bfloat16_is_near(device: str) -> None:
    widths = (12, 40, 40, 1)
    params = {name: leaf.to(device) for name, leaf in models(mlp(widths, True, "float32"), widths).items()}
    draw = torch.Generator().manual_seed(1)
    x, y = torch.rand(CLIENTS, 500, 12, generator=draw), torch.rand(TRIALS, CLIENTS, 500, generator=draw).round()
    x, y, context = x.to(device), y.to(device), torch.zeros(CLIENTS, 500, device=device)
    exact, rough = (
        torch.vmap(torch.vmap(of(batched_gradient, mlp(widths, True, precision))), in_dims=(0, None, 0, None))(
            params, x, y, context
        )[0]
        for precision in ("float32", "bfloat16")
    )
    for name, leaf in exact.items():
        assert (rough[name] - leaf).norm() < 0.03 * leaf.norm() + 1e-4, name
        assert rough[name].dtype == torch.float32


def test_kernels_are_asked_for_both_ways(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def spied(name: str) -> Callable[..., Any]:
        passed = getattr(dense, name)

        def spy(*given: Any, **named: Any) -> Any:
            asked.append(name)
            return passed(*given, **named)

        return spy

    for name in ("outputs_of", "slopes_of"):
        monkeypatch.setattr(dense, name, spied(name))
    model = mlp((12, 40, 40, 1), True, "float32")
    params = {name: leaf[0, 0].to(device) for name, leaf in models(model, (12, 40, 40, 1)).items()}
    x, y = torch.rand(50, 12, device=device), torch.zeros(50, device=device)
    of(batched_gradient, model)(params, x, y, y)
    assert asked == (["outputs_of", "slopes_of"] if dense.pays(x, params["1.weight"][None, None]) else [])


def test_what_is_no_number_stays_visible(device: str) -> None:
    model = mlp((12, 40, 40, 1), True, "float32")
    params = {name: leaf[0, 0].to(device) for name, leaf in models(model, (12, 40, 40, 1)).items()}
    params["1.bias"][3] = torch.nan
    x, y = torch.rand(50, 12, device=device), torch.zeros(50, device=device)
    gradient, _ = of(batched_gradient, model)(params, x, y, y)
    assert gradient["2.weight"].isnan().any() and gradient["0.weight"].isnan().any()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_inputs_laid_out_once_are_those_of_every_step(device: str, precision: Precision) -> None:
    widths = (2 * 3 * 5, 40, 40, 1)
    model = mlp(widths, True, precision)
    assert model.batched is not None
    params = {name: leaf[0, 0].to(device) for name, leaf in models(model, widths).items()}
    x = torch.rand(1, 1, SAMPLES, 2, 3, 5, generator=torch.Generator().manual_seed(1)).to(device)
    entered = model.batched.enter(x)[0, 0]
    slope = torch.ones(SAMPLES, 1, device=device)
    results = []
    for inputs in (x[0, 0], entered):
        logits, kept = model.batched.forward(params, inputs)
        results.append((logits, model.batched.backward(params, kept, slope), model.apply(params, inputs)))
    (logits, gradient, applied), (again, same, also) = results
    assert torch.equal(logits, again) and torch.equal(applied, also)
    assert all(torch.equal(gradient[name], same[name]) for name in gradient)
    assert entered.shape[1] % 16 == 0 and torch.equal(entered[:, widths[0]], torch.ones_like(entered[:, 0]))
