"""Models that a symmetry cannot tell anything: the same logits for every way to see an image, and nothing else lost."""

from typing import Any

import pytest
import torch
from torch import Tensor

from perinvfl.algorithms import FedAvg
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings, build_model
from perinvfl.models.symmetry import Symmetry

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (6, 5)},
    "linear": {"kind": "linear"},
    "resnet18": {"kind": "resnet18", "width": 2, "stem": "small"},
    "resnet18 by products": {"kind": "resnet18", "width": 2, "stem": "small", "convolution": "products"},
}
SHAPE = (3, 6, 6)


def turned(image: Tensor, times: int) -> Tensor:
    """Pixel by pixel: what stood in row r of the last column comes to column r of the first row, and so on."""
    for _ in range(times):
        size = image.shape[-1]
        image = torch.stack(
            [torch.stack([image[..., c, size - 1 - r] for c in range(size)], -1) for r in range(size)], -2
        )
    return image


def mirrored(image: Tensor) -> Tensor:
    return torch.stack([image[..., image.shape[-1] - 1 - c] for c in range(image.shape[-1])], -1)


def orbit(symmetry: Symmetry, image: Tensor) -> list[Tensor]:
    """Every way to see the image, the first as it is."""
    turns = range(4) if symmetry != "flips" else range(1)
    seen = [turned(image, times) for times in turns]
    return seen if symmetry == "rotations" else seen + [mirrored(view) for view in seen]


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("symmetry", ["rotations", "flips", "rotations and flips"])
@pytest.mark.parametrize("name", MODELS)
def test_every_view_has_the_logits_of_the_mean(name: str, symmetry: Symmetry, dtype: torch.dtype) -> None:
    blind = build_model(ModelSettings(blind_to=symmetry, **MODELS[name]), SHAPE, 2, "float32")
    sighted = build_model(ModelSettings(**MODELS[name]), SHAPE, 2, "float32")
    params = blind.init(generator(0, "weights"))
    image = torch.rand(3, *SHAPE, generator=generator(0, "image"))
    image = (255 * image).to(dtype) if dtype == torch.uint8 else image
    views = orbit(symmetry, image)
    assert len(views) == {"rotations": 4, "flips": 2, "rotations and flips": 8}[symmetry]
    expected = sum(sighted.apply(params, view) for view in views) / len(views)
    for view in views:
        torch.testing.assert_close(blind.apply(params, view), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(blind.classify(params, blind.features(params, view)), expected, rtol=1e-4, atol=1e-5)
    assert (sighted.apply(params, views[-1]) - sighted.apply(params, image)).abs().max() > 1e-3
    assert blind.apply(params, image).std(0).max() > 1e-4  # different images are still told apart


@pytest.mark.parametrize("name", MODELS)
def test_blind_under_vmap(name: str) -> None:
    model = build_model(ModelSettings(blind_to="rotations and flips", **MODELS[name]), SHAPE, 1, "float32")
    each = [model.init(generator(seed, "weights")) for seed in range(2)]
    stacked = {leaf: torch.stack([params[leaf] for params in each]) for leaf in each[0]}
    image = torch.rand(2, 3, *SHAPE, generator=generator(0, "image"))
    expected = torch.stack([model.apply(params, own) for params, own in zip(each, image, strict=True)])
    for view in orbit("rotations and flips", image):
        torch.testing.assert_close(torch.vmap(model.apply)(stacked, view), expected, rtol=1e-4, atol=1e-5)


def test_a_blind_model_trains_alike_batched_and_looped_and_ends_blind() -> None:
    federation = random_federation(clients=3, contexts=1, samples=8, shape=(2, 4, 4))
    settings = ModelSettings(hidden=(6,), blind_to="rotations")
    ended = []
    for executor in ("vmap", "loop"):
        how = Training(executor=executor, device="cpu")
        simulation = Simulation([FedAvg(learning_rate=0.5)], [federation], [0], how, settings)
        for _ in range(3):
            simulation.round()
        ended.append({name: leaf[0] for name, leaf in simulation.server.params.items()})
    for name in ended[0]:
        torch.testing.assert_close(ended[0][name], ended[1][name], rtol=1e-4, atol=1e-6)
    x = federation.train.x[0]
    logits = [simulation.model.apply(ended[0], view) for view in orbit("rotations", x)]
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "symmetry"),
    [
        ((12,), "rotations"),
        ((12,), "flips"),
        ((4, 4), "flips"),
        ((2, 4, 6), "rotations"),
        ((2, 6, 4), "rotations and flips"),
    ],
)
def test_what_is_no_image_or_not_square_is_refused(shape: tuple[int, ...], symmetry: Symmetry) -> None:
    with pytest.raises(UserError, match=f'model.blind_to = "{symmetry}" takes') as refusal:
        build_model(ModelSettings(hidden=(4,), blind_to=symmetry), shape, 1, "float32")
    assert ("square" in str(refusal.value)) == ("rotations" in symmetry)


def test_flips_need_no_square() -> None:
    model = build_model(ModelSettings(hidden=(4,), blind_to="flips"), (2, 4, 6), 1, "float32")
    image, params = torch.rand(2, 2, 4, 6), model.init(generator(0, "weights"))
    torch.testing.assert_close(model.apply(params, mirrored(image)), model.apply(params, image))


def test_batch_norm_is_refused() -> None:
    with pytest.raises(UserError, match=r'does not go with model\.norm = "batch"'):
        build_model(ModelSettings(kind="resnet18", norm="batch", width=2, blind_to="flips"), SHAPE, 1, "float32")
