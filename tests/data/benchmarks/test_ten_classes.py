"""Ten classes in ten colours: the same images, another label and another way to colour them."""

import dataclasses
import hashlib
from math import sqrt

import pytest
import torch
from torch import Tensor

from perinvfl.data.benchmarks.digits import DigitSettings, assignment, digit_federation, ten_colours
from perinvfl.data.benchmarks.sources import embedded_digits
from perinvfl.data.federation import Federation, Split
from perinvfl.runs.experiment import build_experiment

TEN = DigitSettings(
    classes=10, p_train=(0.9, 0.6), train_per_client=5000, test_per_client=2000, p_test=(0.1, 0.5), label_noise=0.2
)


@pytest.fixture(scope="module")
def ten() -> Federation:
    return digit_federation("rc_mnist", TEN, 0)


def colour_of(split: Split) -> Tensor:
    """[N, M] which of the ten colours an image has."""
    total = split.x.sum((-2, -1))
    shares = total / total.sum(-1, keepdim=True)  # [N, M, 3]
    hues = ten_colours() / ten_colours().sum(-1, keepdim=True)
    distance = (shares[..., None, :] - hues).norm(dim=-1)
    assert float(distance.amin(-1).amax()) < 1e-4
    return distance.argmin(-1)


def assert_rate(hits: Tensor, p: float) -> None:
    """The share of hits is within 5 standard deviations of p."""
    assert abs(float(hits.double().mean()) - p) <= 5 * sqrt(p * (1 - p) / hits.numel())


def test_colours_are_apart_and_of_one_mean() -> None:
    colours = ten_colours()
    assert torch.allclose(colours.mean(1), torch.tensor(0.5))
    assert float(colours.amin()) >= 0 and float(colours.amax()) <= 1
    apart = torch.cdist(colours, colours) + 9 * torch.eye(10)
    assert float(apart.amin()) > 0.35


def test_shapes_and_types(ten: Federation) -> None:
    assert (ten.task, ten.outputs, ten.shape) == ("multiclass", 10, (3, 14, 14))
    assert ten.train.y.dtype == torch.int64 and ten.train.x.dtype == torch.float32
    assert ten.train.y.unique().tolist() == list(range(10))
    assert all(0.05 < score < 0.2 for scores in ten.notes["constant"].values() for score in scores)  # type: ignore[attr-defined]


def test_a_noisy_label_is_any_other_class(ten: Federation) -> None:
    drawn = assignment(TEN, 0)
    for split, rows in ((ten.train, drawn.train), (ten.tests["0.1"], drawn.test)):
        clean = embedded_digits("mnist").labels[rows].long()
        noisy = split.y != clean
        assert_rate(noisy, 0.2)
        for step in range(1, 10):
            assert_rate(((split.y - clean) % 10 == step)[noisy], 1 / 9)


def test_colour_law(ten: Federation) -> None:
    noisy = ten.train.y != embedded_digits("mnist").labels[assignment(TEN, 0).train].long()
    step = (colour_of(ten.train) - ten.train.y) % 10
    for client, p in enumerate((0.9, 0.6)):
        for known in (noisy[client], ~noisy[client]):  # given the label, colour knows nothing of the noise
            assert_rate((step[client] == 0)[known], p)
        for other in range(1, 10):
            assert_rate((step[client] == other)[step[client] > 0], 1 / 9)
    for case, split in ten.tests.items():
        assert_rate(colour_of(split) == split.y, float(case))


def test_test_contexts_differ_by_colour_alone(ten: Federation) -> None:
    one, other = ten.tests.values()
    assert torch.equal(one.y, other.y)
    assert torch.allclose(one.x.mean(2), other.x.mean(2), atol=1e-6)
    agreed, agrees = colour_of(one) == one.y, colour_of(other) == other.y
    assert bool((agrees | ~agreed).all())


def test_grayscale_shows_the_shape_in_all_three_channels(ten: Federation) -> None:
    grey = digit_federation("rc_mnist", dataclasses.replace(TEN, grayscale=True), 0)
    assert torch.equal(grey.train.y, ten.train.y)
    assert all(torch.equal(grey.train.x[:, :, 0], grey.train.x[:, :, channel]) for channel in (1, 2))
    assert torch.allclose(grey.train.x[:, :, 0], 2 * ten.train.x.mean(2), atol=1e-6)
    assert torch.equal(grey.tests["0.1"].x, grey.tests["0.5"].x)


def test_a_client_left_out_keeps_ten_classes() -> None:
    few = dataclasses.replace(TEN, train_per_client=60, test_per_client=30, leave_out=1)
    federation = digit_federation("rc_fmnist", few, 0)
    assert (federation.task, federation.outputs, federation.clients) == ("multiclass", 10, 1)


@pytest.mark.parametrize(
    ("grayscale", "digest"),
    [(False, "09b5a16e19f7dc00"), (True, "98f994b03365023d")],
)
def test_two_classes_are_what_they_were_before_there_were_ten(grayscale: bool, digest: str) -> None:
    settings = DigitSettings(train_per_client=50, test_per_client=20, holdout=5, grayscale=grayscale)
    federation = digit_federation("rc_mnist", settings, 0)
    assert federation.validation is not None
    digested = hashlib.sha256()
    for split in (federation.train, federation.validation, *federation.tests.values()):
        for part in split:
            digested.update(bytes(part.contiguous().view(torch.uint8).flatten().tolist()))
    assert digested.hexdigest()[:16] == digest


def test_a_run_of_two_classes_keeps_its_id() -> None:
    asked = {"data": {"benchmark": "rc_mnist"}, "algorithm": {"name": "fedavg"}}
    plain = build_experiment(asked).trials[0]
    named = build_experiment({**asked, "data": {"benchmark": "rc_mnist", "classes": 2}}).trials[0]
    ten = build_experiment({**asked, "data": {"benchmark": "rc_mnist", "classes": 10}}).trials[0]
    assert plain.id == named.id != ten.id
    assert "classes" not in plain.asked()["data"]
