"""The kernels of a GPU, computed step by step by Triton's interpreter, against the library's operations."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from perinvfl.core.seeding import generator
from perinvfl.models import fused, resnet18
from perinvfl.models.fused import launch, operations

MODELS = 2
RTOL = 2e-3 if torch.cuda.is_available() else 1e-4  # products in TF32 there
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a GPU, where there is none."""
    if not torch.cuda.is_available():
        from perinvfl.models.fused import kernels

        monkeypatch.setattr(launch, "kernels", lambda: kernels)
        monkeypatch.setattr(operations, "fits", lambda h: True)


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    draw = generator(len(shapes), "weights")
    return [torch.randn(MODELS, *shape, generator=draw).to(DEVICE) for shape in shapes]


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
        for own, right in zip(found, wanted, strict=True):
            torch.testing.assert_close(own.double(), right, rtol=RTOL, atol=2 * RTOL)


@pytest.mark.parametrize(
    ("images", "channels", "kernel", "step"),
    [((2, 7, 5), (16, 16), 1, 2), ((1, 3, 3), (24, 72), 3, 1), ((2, 9, 8), (24, 16), 3, 2)],
)
def test_a_convolution(images: tuple[int, ...], channels: tuple[int, int], kernel: int, step: int) -> None:
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
def test_a_group_norm(relu: bool, adds: bool, channels: int) -> None:
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
def test_pooling(size: tuple[int, int]) -> None:
    def theirs(h: Tensor) -> Tensor:
        return F.max_pool2d(h.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1)

    check_alike(fused.pool, theirs, drawn((2, *size, 16)))


def test_what_is_no_number_stays_visible() -> None:
    """Or a run that diverged would look like one that did not."""
    h, ones, zeros = (
        torch.ones(1, 4, 4, 16, device=DEVICE),
        torch.ones(16, device=DEVICE),
        torch.zeros(16, device=DEVICE),
    )
    assert fused.group_norm(h, torch.nan * ones, zeros, 8, relu=True).isnan().all()
    h[0, 1, 1, 3] = torch.nan
    assert fused.group_norm(h, ones, zeros, 8, relu=True).isnan().any()
    assert fused.pool(h).isnan().any()


def test_a_network_is_the_same_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    model = resnet18(1, width=16)
    params = {name: leaf.to(DEVICE) for name, leaf in model.init(generator(0, "weights")).items()}
    x = torch.randint(0, 256, (2, 3, 32, 32), generator=generator(0, "images"), dtype=torch.uint8).to(DEVICE)
    asked: list[object] = []
    for name in ("convolve", "convolve_back"):
        monkeypatch.setattr(launch, name, spied(getattr(launch, name), asked))

    def loss(params: dict[str, Tensor]) -> Tensor:
        return model.apply(params, x).square().sum()

    with products_in_tf32(True):
        found, slopes = model.apply(params, x), grad(loss)(params)
    assert len(asked) == 3 * 20 - 1  # 20 convolutions, twice forward and once back, but for the images themselves
    monkeypatch.setattr(operations, "fits", lambda h: False)
    with products_in_tf32(False):
        wanted, right = model.apply(params, x), grad(loss)(params)
    torch.testing.assert_close(found, wanted, rtol=10 * RTOL, atol=10 * RTOL)
    for name, slope in right.items():
        torch.testing.assert_close(slopes[name], slope, rtol=50 * RTOL, atol=50 * RTOL * float(slope.abs().max()))


def test_small_images_and_large_ones_are_left_to_the_library() -> None:
    weight = torch.zeros(64, 8, 3, 3)
    few, many, colours = (torch.zeros(1, 1, 1, n, dtype=torch.bfloat16, device=DEVICE) for n in (8, 64, 3))
    assert not operations.convolves(few, weight, 1)  # channels
    assert operations.convolves(many.expand(100, 112, 112, 64), weight, 1)
    assert not operations.convolves(many.expand(2700, 112, 112, 64), weight, 1)  # places
    assert operations.convolves(colours.expand(100, 224, 224, 3), torch.zeros(64, 3, 7, 7), 2)
    assert not operations.convolves(colours.expand(2600, 224, 224, 3), torch.zeros(64, 3, 7, 7), 2)


@contextlib.contextmanager
def products_in_tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def spied(function: Callable[..., object], asked: list[object]) -> Callable[..., object]:
    def spy(*given: object) -> object:
        asked.append(given)
        return function(*given)

    return spy
