"""Forward and backward written out, against automatic differentiation of the same network."""

import pytest
import torch
from torch import Tensor

from perinvfl.core.tree import Params
from perinvfl.learning.direct import batched_gradient
from perinvfl.learning.problem import Batch, Gradient, functional_gradient
from perinvfl.models.base import Model
from perinvfl.models.mlp import mlp

TRIALS, CLIENTS, SAMPLES = 3, 2, 40


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
def test_gradients_are_those_of_automatic_differentiation(widths: tuple[int, ...], bias: bool, bytes: bool) -> None:
    model = mlp(widths, bias, "float32")
    params = models(model, widths)
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(CLIENTS, SAMPLES, widths[0], generator=draw)
    if bytes:
        x = (255 * x).to(torch.uint8)
    y = torch.rand(TRIALS, CLIENTS, SAMPLES, generator=draw).round()
    context = torch.randint(2, (CLIENTS, SAMPLES), generator=draw)

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


def test_bfloat16_is_near() -> None:
    widths = (12, 40, 40, 1)
    params = models(mlp(widths, True, "float32"), widths)
    draw = torch.Generator().manual_seed(1)
    x, y = torch.rand(CLIENTS, 500, 12, generator=draw), torch.rand(TRIALS, CLIENTS, 500, generator=draw).round()
    context = torch.zeros(CLIENTS, 500)
    exact, rough = (
        torch.vmap(torch.vmap(of(batched_gradient, mlp(widths, True, precision))), in_dims=(0, None, 0, None))(
            params, x, y, context
        )[0]
        for precision in ("float32", "bfloat16")
    )
    for name, leaf in exact.items():
        assert (rough[name] - leaf).norm() < 0.03 * leaf.norm() + 1e-4, name
        assert rough[name].dtype == torch.float32
