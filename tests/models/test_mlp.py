"""Models: the law of the initial weights, and padding that changes nothing."""

import math

import pytest
import torch

from perinvfl.core.seeding import generator
from perinvfl.models import ModelSettings, build_model, mlp
from tests.reference import network, parameters_of


def test_init_is_xavier_uniform_with_zero_biases() -> None:
    widths = (30, 50, 40, 3)
    params = mlp(widths, bias=True, precision="float32").strip(
        mlp(widths, bias=True, precision="float32").init(generator(0, "weights"))
    )
    for layer in range(3):
        weight = params[f"{layer}.weight"]
        assert weight.shape == (widths[layer + 1], widths[layer])
        bound = math.sqrt(6 / (widths[layer] + widths[layer + 1]))
        assert weight.abs().max() <= bound
        assert weight.abs().max() > 0.9 * bound  # fills the range
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
        assert abs(weight.mean().item()) < 0.2 * bound
        assert torch.equal(params[f"{layer}.bias"], torch.zeros(widths[layer + 1]))


def test_init_does_not_depend_on_the_padding_and_follows_the_seed() -> None:
    model = mlp((6, 5, 4, 1), bias=True, precision="float32")
    one, same, other = (model.init(generator(seed, "weights")) for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["0.weight"], other["0.weight"])
    drawn = torch.empty(5, 6)
    torch.nn.init.xavier_uniform_(drawn, generator=generator(0, "weights"))
    assert torch.equal(model.strip(one)["0.weight"], drawn)


@pytest.mark.parametrize("hidden", [(5, 4), (16,), (17, 33, 2)])
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_padded_model_predicts_like_the_plain_network(hidden: tuple[int, ...], outputs: int) -> None:
    model = build_model(ModelSettings(hidden=hidden), (2, 3), outputs, "float32")
    params = model.init(generator(1, "weights"))
    for number, name in enumerate(params):
        if name.endswith("bias"):  # non-zero biases on the real units only
            width = model.strip(params)[name].shape[0]
            params[name][:width] = torch.randn(width, generator=generator(1, "bias", number))
    stripped = model.strip(params)
    for layer, width in enumerate(hidden):
        assert params[f"{layer}.weight"].shape[0] % 16 == 0
        assert stripped[f"{layer}.weight"].shape[0] == width
    x = torch.randn(7, 2, 3, generator=generator(1, "x"))
    logits = model.apply(params, x)
    assert logits.shape == (7, outputs) and logits.dtype == torch.float32
    plain = network(stripped)
    torch.testing.assert_close(logits.double(), plain(x.double()), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parameters_of(plain), {name: leaf.double() for name, leaf in stripped.items()})


def test_padding_gets_no_gradient() -> None:
    model = mlp((6, 5, 4, 1), bias=True, precision="float32")
    params = {name: leaf.requires_grad_() for name, leaf in model.init(generator(0, "weights")).items()}
    x = torch.randn(9, 6, generator=generator(0, "x"))
    model.apply(params, x).square().sum().backward()
    for name, leaf in params.items():
        assert leaf.grad is not None
        outside = leaf.grad.clone()
        outside[tuple(slice(0, size) for size in model.strip(params)[name].shape)] = 0
        assert torch.equal(outside, torch.zeros_like(outside)), name
    assert params["0.weight"].grad is not None and params["0.weight"].grad.abs().sum() > 0


def test_strip_keeps_leading_axes() -> None:
    model = mlp((6, 5, 4, 3), bias=True, precision="float32")
    params = model.init(generator(0, "weights"))
    stacked = {name: torch.stack([leaf, 2 * leaf]) for name, leaf in params.items()}
    for name, leaf in model.strip(stacked).items():
        assert torch.equal(leaf[1], 2 * model.strip(params)[name])


def test_the_linear_model_is_one_matrix() -> None:
    model = build_model(ModelSettings(kind="linear"), (4,), 2, "float32")
    params = model.init(generator(0, "weights"))
    assert {name: leaf.shape for name, leaf in params.items()} == {"0.weight": (2, 4)}
    x = torch.randn(3, 4, generator=generator(0, "x"))
    torch.testing.assert_close(model.apply(params, x), x @ params["0.weight"].T)


def test_bfloat16_is_near_float32_and_gives_float32() -> None:
    settings = ModelSettings(hidden=(5, 4))
    exact, rough = (build_model(settings, (6,), 1, precision) for precision in ("float32", "bfloat16"))
    params = exact.init(generator(0, "weights"))
    x = torch.randn(50, 6, generator=generator(0, "x"))
    assert rough.apply(params, x).dtype == torch.float32
    assert not torch.equal(rough.apply(params, x), exact.apply(params, x))
    torch.testing.assert_close(rough.apply(params, x), exact.apply(params, x), rtol=0.05, atol=0.05)
