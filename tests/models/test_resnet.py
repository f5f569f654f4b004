"""ResNet-18: torchvision's parameters, the library's arithmetic, statistics of a batch norm, both executors alike."""

import dataclasses
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.resnet import plain_resnet18
from perinvfl.algorithms import ALGORITHMS, FedAvg, PerInvFL
from perinvfl.core.seeding import generator
from perinvfl.core.tree import Params
from perinvfl.data.benchmarks.drawn import DrawnSettings, drawn_federation
from perinvfl.data.federation import Federation, Split
from perinvfl.engine.batched import Unrolled
from perinvfl.engine.simulation import Simulation
from perinvfl.errors import UserError
from perinvfl.learning.problem import autograd_gradient
from perinvfl.learning.training import Training
from perinvfl.models import ModelSettings, build_model, mix_statistics, resnet18
from perinvfl.models.image_operations import convolve_by_products
from perinvfl.models.resnet import IMAGENET_DEVIATION, IMAGENET_MEAN, parameter_shapes

TINY = DrawnSettings(train_per_client=12, test_per_client=5, birds=24, backgrounds=60, size=32)


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (*shape, 3, 64, 64), generator=generator(seed, "images"), dtype=torch.uint8)


def as_module(params: Params, width: int, norm: str) -> nn.Module:
    """An ordinary module with these parameters; its own order of definition is that of the forward pass."""
    module = plain_resnet18(width, norm)
    names = [
        *("conv1.weight", "bn1.weight", "bn1.bias"),
        *(name for name in params if name.startswith("layer")),
        *("fc.weight", "fc.bias"),
    ]
    with torch.no_grad():
        for own, name in zip(module.parameters(), names, strict=True):
            own.copy_(params[name])
    return module


def standardised(x: Tensor) -> Tensor:
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_DEVIATION))
    return (x / 255 - mean) / deviation


def test_the_parameters_are_torchvision_s() -> None:
    shapes = parameter_shapes(1000)
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 11_689_512
    assert list(shapes)[:4] == ["conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight"]
    assert shapes["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)
    assert shapes["layer4.1.bn2.bias"] == (512,) and shapes["fc.weight"] == (1000, 512)
    assert "layer1.0.downsample.0.weight" not in shapes
    assert parameter_shapes(1, stem="small")["conv1.weight"] == (64, 3, 3, 3)


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("convolution", ["library", "products"])
def test_it_predicts_and_learns_like_an_ordinary_module(norm: str, convolution: str) -> None:
    model = resnet18(1, norm=norm, width=8, convolution=convolution)  # type: ignore[arg-type]
    params = model.init(generator(0, "weights"))
    module, x = as_module(params, 8, norm), images(6)
    variables = {name: leaf.requires_grad_() for name, leaf in params.items()}
    ours, theirs = model.apply(variables, x), module(standardised(x))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    ours.square().mean().backward()
    theirs.square().mean().backward()
    last, first = list(module.parameters())[-2], next(module.parameters())
    torch.testing.assert_close(variables["fc.weight"].grad, last.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(variables["conv1.weight"].grad, first.grad, rtol=1e-2, atol=1e-4)


def test_features_and_classifier_come_apart() -> None:
    model = build_model(ModelSettings(kind="resnet18", width=64), (3, 64, 64), 1, "float32")
    params, x = model.init(generator(0, "weights")), images(2)
    features = model.features(params, x)
    assert features.shape == (2, 512)
    assert torch.equal(model.classify(params, features), model.apply(params, x))


def test_statistics_make_a_batch_norm_predict_as_in_training() -> None:
    model = resnet18(1, norm="batch", width=8)
    params, x = model.init(generator(0, "weights")), images(6)
    assert model.statistics is not None
    measured = model.statistics(params, x)
    assert len(measured) == 2 * sum(leaf.ndim == 4 for leaf in params.values())
    torch.testing.assert_close(model.apply(params | measured, x), model.apply(params, x), rtol=1e-4, atol=1e-5)
    one = model.apply(params | measured, x[:1])  # with statistics, an image is predicted whatever is beside it
    torch.testing.assert_close(one, model.apply(params | measured, x)[:1], rtol=1e-4, atol=1e-5)
    module = as_module(params, 8, "batch")
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    order = [name.removesuffix(".running_mean") for name in measured if name.endswith("running_mean")]
    # A module meets the norm around a block last, and ours first.
    order = sorted(
        order, key=lambda name: (name.split(".")[:2] if name.startswith("layer") else ["", ""], "down" in name)
    )
    for norm, name in zip(norms, order, strict=True):
        norm.running_mean, norm.running_var = measured[f"{name}.running_mean"], measured[f"{name}.running_var"]
    torch.testing.assert_close(model.apply(params | measured, x), module.eval()(standardised(x)), rtol=1e-3, atol=1e-4)


def test_mixed_statistics_are_those_of_all_data_together() -> None:
    x = torch.randn(1, 3, 50, 4, generator=generator(0, "x")) + torch.arange(3).view(1, 3, 1, 1)
    each = {"a.running_mean": x.mean(2), "a.running_var": x.var(2, correction=0)}
    mixed = mix_statistics(each, torch.full((1, 3), 1 / 3))
    together = x.flatten(1, 2)
    torch.testing.assert_close(mixed["a.running_mean"], together.mean(1))
    torch.testing.assert_close(mixed["a.running_var"], together.var(1, correction=0))


def test_official_weights_load_from_both_kinds_of_file(tmp_path: Path) -> None:
    official = {name: torch.randn(shape) for name, shape in parameter_shapes(1000, width=8).items()}
    official["bn1.running_mean"], official["bn1.num_batches_tracked"] = torch.zeros(8), torch.tensor(7)
    torch.save(official, tmp_path / "resnet18.pth")
    write_safetensors(official, tmp_path / "resnet18.safetensors")
    for name in ("resnet18.pth", "resnet18.safetensors"):
        params = resnet18(1, norm="batch", width=8, weights=str(tmp_path / name)).init(generator(0, "weights"))
        assert torch.equal(params["layer3.1.conv2.weight"], official["layer3.1.conv2.weight"])
        assert params["fc.weight"].shape == (1, 64)  # another number of classes: drawn anew
        assert "bn1.running_mean" not in params
    with pytest.raises(UserError, match=r"conv1.weight is of shape \(8, 3, 7, 7\), and must be"):
        resnet18(1, width=16, weights=str(tmp_path / "resnet18.pth"))
    (tmp_path / "other.pth").write_bytes(b"nothing")
    for name, sentence in (
        ("none.pth", "cannot be read"),
        ("other.pth", "holds no weights"),
        ("x.bin", "must be a .pth"),
    ):
        with pytest.raises(UserError, match=sentence):
            resnet18(1, width=8, weights=str(tmp_path / name))


def write_safetensors(tensors: Params, path: Path) -> None:
    header: dict[str, dict[str, object]] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, leaf in tensors.items():
        content = leaf.numpy().tobytes()
        kind = "I64" if leaf.dtype == torch.int64 else "F32"
        header[name] = {"dtype": kind, "shape": list(leaf.shape), "data_offsets": [len(body), len(body) + len(content)]}
        body += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def simulate(executor: str, model: ModelSettings, federations: list[Federation], rounds: int) -> Simulation:
    algorithms = [
        PerInvFL(learning_rate=rate, personal_learning_rate=0.02, penalty_weight=2.0, warmup_rounds=0)
        for rate in (0.05, 0.02)
    ]
    asked = Training(batch_size=6, executor=executor, device="cpu")  # type: ignore[arg-type]
    simulation = Simulation(algorithms, federations, [0, 1], asked, model)
    for _ in range(rounds):
        simulation.round()
    return simulation


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize(("convolution", "rounds"), [("library", 1), ("products", 3)])
def test_both_executors_agree(norm: str, convolution: str, rounds: int) -> None:
    """Augmented batches, two seeds whose clients differ in size, personal models and their statistics.

    The library takes another algorithm for many models at once; ReLUs near zero multiply the difference in every round.
    """
    width, size = (8, 32) if convolution == "library" else (4, 16)
    settings = DrawnSettings(**{**vars(TINY), "size": size, "flip": True, "crop": 2, "sampling": "balanced"})
    federations = [drawn_federation(settings, seed) for seed in (0, 1)]
    model = ModelSettings(kind="resnet18", width=width, norm=norm, convolution=convolution, stem="small")  # type: ignore[arg-type]
    loop, vmap = (simulate(executor, model, federations, rounds) for executor in ("loop", "vmap"))
    by_loop, by_vmap = (
        [
            simulation.server.params,
            *(simulation.models_of(kind, simulation.everyone) for kind in ("personal", "global")),
        ]
        for simulation in (loop, vmap)
    )
    for ours, theirs in zip(by_loop, by_vmap, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], rtol=2e-4, atol=2e-4)
    if norm == "batch":
        assert "bn1.running_var" in by_loop[1]
        assert "bn1.running_var" not in loop.server.params  # never trained, sent or averaged as a parameter


def test_an_unrolled_program_does_what_a_batched_one_does() -> None:
    """What a GPU records for a loop, here without recording."""
    federations = [drawn_federation(TINY, seed) for seed in (0, 1)]
    model = ModelSettings(kind="resnet18", width=4, convolution="products", stem="small")
    batched = simulate("vmap", model, federations, rounds=2)
    unrolled = simulate("vmap", model, federations, rounds=0)
    problem = dataclasses.replace(unrolled.problem, gradient_of=autograd_gradient)
    unrolled.executor = Unrolled(unrolled.algorithms, problem, unrolled.clients, unrolled.device)
    for _ in range(2):
        unrolled.round()
    ours, theirs = (s.personal_models(s.everyone) for s in (unrolled, batched))
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(unrolled.server.params[name], batched.server.params[name], rtol=1e-4, atol=1e-5)


def test_every_algorithm_takes_a_batch_norm() -> None:
    federation = drawn_federation(dataclasses.replace(TINY, size=16), 0)
    for algorithm in ALGORITHMS.values():
        names = {field.name for field in dataclasses.fields(algorithm)}
        once: dict[str, Any] = {
            name: 1 for name in ("local_steps", "personal_steps", "finetune_steps") if name in names
        }
        simulation = Simulation(
            [algorithm(**once)],
            [federation],
            [0],
            Training(batch_size=4, executor="loop", device="cpu"),
            ModelSettings(kind="resnet18", width=2, norm="batch"),
        )
        simulation.round()
        assert all(float(row.min()) >= 0 for row in simulation.evaluate().popitem()[1].values())


def test_the_global_model_predicts_with_statistics_of_all_clients() -> None:
    federation = drawn_federation(TINY, 0)
    model = ModelSettings(kind="resnet18", width=4, norm="batch")
    simulation = Simulation([FedAvg()], [federation], [0], Training(batch_size=4, device="cpu"), model)
    used = simulation.models_of("global", simulation.everyone)
    assert torch.equal(used["bn1.running_mean"][0, 0], used["bn1.running_mean"][0, 3])
    params = {name: leaf[0] for name, leaf in simulation.server.params.items()}
    assert simulation.model.statistics is not None
    places = torch.arange(256) * 12 // 256
    whole = simulation.model.statistics(params, federation.train.x[:, places].flatten(0, 1))
    torch.testing.assert_close(used["bn1.running_mean"][0, 0], whole["bn1.running_mean"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(used["bn1.running_var"][0, 0], whole["bn1.running_var"], rtol=1e-3, atol=1e-3)


def test_bfloat16_is_near_float32() -> None:
    exact, rough = (resnet18(1, width=8, precision=precision) for precision in ("float32", "bfloat16"))
    params, x = exact.init(generator(0, "weights")), images(4)
    assert rough.apply(params, x).dtype == torch.float32
    torch.testing.assert_close(rough.apply(params, x), exact.apply(params, x), rtol=0.1, atol=0.1)


def test_augmentation_follows_seed_client_and_round_alone() -> None:
    plain, turned = (drawn_federation(DrawnSettings(**{**vars(TINY), "flip": flip}), 0) for flip in (False, True))
    training = Training(batch_size=6, device="cpu")
    model = ModelSettings(kind="resnet18", width=2)
    one, two = (Simulation([FedAvg()], [federation], [0], training, model) for federation in (plain, turned))
    ids = one.everyone
    drawn, viewed = one.sample_indices(3, ids, 2, "batches"), two.sample_indices(3, ids, 2, "batches")
    assert drawn is not None and viewed is not None
    assert torch.equal(viewed % 12, drawn)  # the same samples
    assert set((viewed // 12).flatten().tolist()) == {0, 1}
    again, later = two.sample_indices(3, ids, 2, "batches"), two.sample_indices(4, ids, 2, "batches")
    assert again is not None and later is not None
    assert torch.equal(viewed, again) and not torch.equal(viewed // 12, later // 12)


def test_test_contexts_that_share_their_images_are_measured_like_those_that_do_not() -> None:
    federation = drawn_federation(TINY, 0)
    apart = {name: Split(split.x.clone(), split.y, split.context) for name, split in federation.tests.items()}
    model = ModelSettings(kind="resnet18", width=4)
    for executor in ("loop", "vmap"):
        training = Training(batch_size=4, executor=executor, device="cpu")
        scores = []
        for tests in (federation.tests, apart):
            own = Federation(**{**vars(federation), "tests": tests})
            scores.append(Simulation([FedAvg()], [own], [0], training, model).evaluate())
        for case in federation.tests:
            assert torch.equal(scores[0]["global"][case], scores[1]["global"][case])
            right = scores[0]["global groups"][case][0]
            there = torch.tensor(federation.notes["groups"]["counts"][case])  # type: ignore[index]
            assert (right <= there).all()
            torch.testing.assert_close(right.sum(1) / there.sum(1), scores[0]["global"][case][0])


def test_images_it_cannot_take() -> None:
    with pytest.raises(UserError, match="takes images of three colours"):
        build_model(ModelSettings(kind="resnet18"), (2, 14, 14), 1, "float32")


def test_settings_of_another_kind_of_model_are_refused_and_do_not_name_a_run() -> None:
    with pytest.raises(UserError, match=r'model.width means nothing to kind = "mlp"'):
        ModelSettings(width=32).check("model")
    assert ModelSettings().asked() == {"kind": "mlp", "hidden": (390, 390)}
    assert "hidden" not in ModelSettings(kind="resnet18").asked()


def test_full_batches_are_refused_where_they_cannot_work() -> None:
    uneven = drawn_federation(DrawnSettings(**{**vars(TINY), "sampling": "balanced"}), 0)
    with pytest.raises(UserError, match=r"needs training.batch_size above 0"):
        how = Training(device="cpu", executor="vmap")  # one client after another has no padding
        Simulation([FedAvg()], [uneven], [0], how, ModelSettings(kind="resnet18", norm="batch"))
    flipped = drawn_federation(DrawnSettings(**{**vars(TINY), "flip": True}), 0)
    with pytest.raises(UserError, match=r"data.flip, data.crop and data.middle need mini-batches"):
        Simulation([FedAvg()], [flipped], [0], Training(device="cpu"), ModelSettings(kind="resnet18"))


def test_products_have_second_derivatives_too() -> None:
    """A penalty on gradients goes through the convolution twice."""
    source = torch.Generator().manual_seed(0)
    h, weight = (torch.randn(shape, generator=source, dtype=torch.float64) for shape in ((2, 5, 5, 3), (4, 3, 3, 3)))

    def by_products(h: Tensor, weight: Tensor) -> Tensor:
        return convolve_by_products(h, weight, 1)

    def by_library(h: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(h.permute(0, 3, 1, 2), weight, padding=1).permute(0, 2, 3, 1)

    def slopes(convolve: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        at = [h.clone().requires_grad_(), weight.clone().requires_grad_()]
        first = torch.autograd.grad((convolve(*at) ** 3).sum(), at, create_graph=True)
        return [*first, *torch.autograd.grad((first[0] ** 2).sum() + (first[1] ** 2).sum(), at)]

    for found, wanted in zip(slopes(by_products), slopes(by_library), strict=True):
        torch.testing.assert_close(found, wanted)
