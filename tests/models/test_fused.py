"""The kernels of a GPU, computed step by step by Triton's interpreter, against the library's operations."""

import importlib.util
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from perinvfl.core.seeding import generator
from perinvfl.models import fused, resnet18

MODELS = 2


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As if there were a GPU. A module of its own: others may want the kernels compiled."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    spec = importlib.util.find_spec("perinvfl.models.fused_kernels")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(fused, "kernels", lambda: module)
    monkeypatch.setattr(fused, "fits", lambda h: True)
    return module


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    draw = generator(len(shapes), "weights")
    return [torch.randn(MODELS, *shape, generator=draw) for shape in shapes]


def check_alike(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    """Values and all gradients, for several models at once and for one alone."""

    def both(operation: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
        def one(slope: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
            places = tuple(range(len(given)))
            slopes = grad(lambda *given: (operation(*given) * slope).sum(), places)(*given)
            return operation(*given), *slopes

        return one

    given = [drawn(theirs(*(part[0] for part in inputs)).shape)[0], *inputs]
    wanted = vmap(both(theirs))(*(part.double() for part in given))
    alone = zip(*(both(ours)(*(part[number] for part in given)) for number in range(MODELS)), strict=True)
    for found in vmap(both(ours))(*given), map(torch.stack, alone):
        for ours_, theirs_ in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours_.double(), theirs_, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("images", "channels", "kernel", "step"),
    [((2, 7, 5), (16, 16), 1, 2), ((1, 3, 3), (24, 72), 3, 1), ((2, 9, 8), (24, 16), 3, 2)],
)
def test_a_convolution(
    kernels: ModuleType, images: tuple[int, ...], channels: tuple[int, int], kernel: int, step: int
) -> None:
    ins, outs = channels
    reach = kernel // 2

    def theirs(h: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(h.permute(0, 3, 1, 2), weight, stride=step, padding=reach).permute(0, 2, 3, 1)

    def ours(h: Tensor, weight: Tensor) -> Tensor:
        return fused.convolve(h, weight, (step, step), (reach, reach))

    check_alike(ours, theirs, drawn((*images, ins), (outs, ins, kernel, kernel)))


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("channels", [16, 64])
def test_a_group_norm(kernels: ModuleType, relu: bool, adds: bool, channels: int) -> None:
    groups = min(32, channels // 2)

    def theirs(h: Tensor, weight: Tensor, bias: Tensor, around: Tensor) -> Tensor:
        first = h.permute(0, 3, 1, 2).contiguous()
        normal = F.group_norm(first, groups, weight, bias).permute(0, 2, 3, 1) + (around if adds else 0 * around)
        return torch.relu(normal) if relu else normal

    def ours(h: Tensor, weight: Tensor, bias: Tensor, around: Tensor) -> Tensor:
        return fused.group_norm(h, weight, bias, groups, relu, around if adds else None) + 0 * around

    images, weight, bias, around = drawn((2, 9, 8, channels), (channels,), (channels,), (2, 9, 8, channels))
    check_alike(ours, theirs, [5 + 0.1 * images, weight, bias, around])


@pytest.mark.parametrize("size", [(6, 8), (7, 5)])
def test_pooling(kernels: ModuleType, size: tuple[int, int]) -> None:
    def theirs(h: Tensor) -> Tensor:
        return F.max_pool2d(h.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1)

    check_alike(fused.pool, theirs, drawn((2, *size, 16)))


def test_what_is_no_number_stays_visible(kernels: ModuleType) -> None:
    """Or a run that diverged would look like one that did not."""
    h = torch.ones(1, 4, 4, 16)
    h[0, 1, 1, 3] = torch.nan
    ones, zeros = torch.ones(16), torch.zeros(16)
    assert fused.group_norm(h, ones, zeros, 8, relu=True).isnan().any()
    assert fused.group_norm(torch.ones(1, 4, 4, 16), torch.nan * ones, zeros, 8, relu=True).isnan().all()
    assert fused.pool(h).isnan().any()


def test_a_network_is_the_same_with_kernels(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    model = resnet18(1, width=16)
    params = model.init(generator(0, "weights"))
    x = torch.randint(0, 256, (2, 3, 32, 32), generator=generator(0, "images"), dtype=torch.uint8)
    monkeypatch.setattr(fused, "convolves", lambda h: True)

    def loss(params: dict[str, Tensor]) -> Tensor:
        return model.apply(params, x).square().sum()

    found, slopes = model.apply(params, x), grad(loss)(params)
    for name in ("fits", "convolves", "normalises"):
        monkeypatch.setattr(fused, name, lambda h: False)
    torch.testing.assert_close(found, model.apply(params, x), rtol=1e-4, atol=1e-4)
    for name, slope in grad(loss)(params).items():
        torch.testing.assert_close(slopes[name], slope, rtol=1e-3, atol=1e-3 * float(slope.abs().max()))
