import dataclasses
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from perinvfl.core.config import build
from perinvfl.data.benchmarks.digits import DigitSettings, assignment, digit_federation, turned
from perinvfl.data.benchmarks.sources import Digits, embedded_digits
from perinvfl.data.federation import Federation, Split
from perinvfl.data.registry import BENCHMARKS, build_federation
from perinvfl.errors import UserError

SMALL = DigitSettings(train_per_client=300, test_per_client=100)


@pytest.fixture(scope="module", params=["rc_mnist", "rc_fmnist"])
def full(request: pytest.FixtureRequest) -> Federation:
    return digit_federation(request.param, DigitSettings(), 0)


def source_of(federation: Federation) -> tuple[Tensor, Tensor]:
    return embedded_digits("mnist" if federation.name == "rc_mnist" else "fashion")


def colour_of(split: Split) -> Tensor:
    """[N, M] 1 where the image is in channel 1; every image lies in one channel."""
    lit = split.x.flatten(3).amax(3) > 0  # [N, M, 2]
    assert bool((lit.sum(-1) == 1).all())
    return lit[..., 1].float()


def assert_rate(hits: Tensor, p: float) -> None:
    """The share of hits is within 5 standard deviations of p."""
    assert abs(float(hits.double().mean()) - p) <= 5 * sqrt(p * (1 - p) / hits.numel())


def test_shapes_and_types(full: Federation) -> None:
    assert full.train.x.shape == (4, 12_500, 2, 14, 14)
    assert full.train.x.dtype == full.train.y.dtype == torch.float32
    assert full.train.context.dtype == torch.int64
    assert (full.task, full.outputs, full.contexts, full.clients) == ("binary", 1, 1, 4)
    assert list(full.tests) == ["0.1", "0.2", "0.3", "0.4", "0.5", "0.9", "1"]
    assert full.spectrum == ("0.1", "0.2", "0.3", "0.4", "0.5")
    assert full.validation is None
    for split in full.tests.values():
        assert split.x.shape == (4, 2_500, 2, 14, 14)
        assert bool((split.context == 0).all())
    assert full.notes["sizes"] == full.sizes.tolist() == [12_500] * 4
    assert full.notes["contexts"] == full.contexts_per_client == [1] * 4
    assert set(full.train.y.unique().tolist()) == {0.0, 1.0}
    assert float(full.train.x.amin()) == 0
    assert float(full.train.x.amax()) == 1


def test_no_image_is_used_twice_and_test_images_are_never_trained_on() -> None:
    images = assignment(DigitSettings(), 0)
    assert images.train.shape == (4, 12_500)
    assert images.test.shape == (4, 2_500)
    assert images.train.unique().tolist() == list(range(50_000))
    assert images.test.unique().tolist() == list(range(50_000, 60_000))


def test_the_tensors_are_the_assigned_images_turned_by_the_clients_rotation(full: Federation) -> None:
    images, drawn = source_of(full)[0], assignment(DigitSettings(), 0)
    for split, rows in ((full.train, drawn.train), *((split, drawn.test) for split in full.tests.values())):
        for client in range(4):
            grey = split.x[client].sum(1)  # the empty channel adds nothing
            upright = torch.rot90(grey, -client, (1, 2))
            assert torch.equal(upright, images[rows[client]].float() / 255)


def test_the_second_client_is_turned_counter_clockwise() -> None:
    settings = dataclasses.replace(SMALL, p_train=(0.9,) * 5)
    grey, rows = digit_federation("rc_mnist", settings, 0).train.x.sum(2), assignment(settings, 0).train
    images = embedded_digits("mnist").images[rows] / 255
    assert torch.equal(grey[1], images[1].flip(-1).mT)  # the right column becomes the top row
    assert not torch.equal(grey[1], images[1])
    assert torch.equal(grey[4], images[4])  # rotations start over: four turns are none


def test_label_law(full: Federation) -> None:
    labels, drawn = source_of(full)[1], assignment(DigitSettings(), 0)
    for split, rows in ((full.train, drawn.train), (full.tests["0.1"], drawn.test)):
        flipped = split.y != (labels[rows] <= 4)
        for client in range(4):
            for value in (0, 1):
                assert_rate(flipped[client][split.y[client] == value], 0.25)
        assert len({tuple(row[:100].tolist()) for row in flipped}) == 4  # clients do not share one draw


def test_colour_law(full: Federation) -> None:
    labels, drawn = source_of(full)[1], assignment(DigitSettings(), 0)
    cases = [(full.tests[format(p, "g")], drawn.test, [p] * 4) for p in DigitSettings().p_test]
    for split, rows, p in [(full.train, drawn.train, [0.95, 0.90, 0.85, 0.80]), *cases]:
        agrees = colour_of(split) == split.y
        flipped = split.y != (labels[rows] <= 4)
        for client in range(4):
            for value in (0, 1):
                # Given the label as flipped, colour knows nothing of the flip.
                for noisy in (False, True):
                    mask = (split.y[client] == value) & (flipped[client] == noisy)
                    assert_rate(agrees[client][mask], p[client])


def test_test_contexts_differ_by_colour_alone(full: Federation) -> None:
    cases = list(full.tests.values())
    before = None
    for split in cases:
        assert torch.equal(split.y, cases[0].y)
        assert torch.equal(split.x.sum(2), cases[0].x.sum(2))
        agrees = colour_of(split) == split.y
        if before is not None:  # one draw u < p: what agrees at a smaller p agrees at a larger
            assert bool((agrees | ~before).all())
            assert bool((agrees & ~before).any())
        before = agrees
    assert bool((colour_of(full.tests["1"]) == full.tests["1"].y).all())


def test_constant_scores_are_those_of_the_training_majority(full: Federation) -> None:
    majority = (full.train.y.mean(1, keepdim=True) > 0.5).float()
    expected = (full.tests["0.3"].y == majority).double().mean(1).tolist()
    assert full.notes["constant"] == {case: pytest.approx(expected, abs=1e-12) for case in full.tests}


def equal(one: Split, other: Split) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_same_seed_same_bits_other_seed_other_draw() -> None:
    one, same, other = (digit_federation("rc_mnist", SMALL, seed) for seed in (0, 0, 1))
    assert equal(one.train, same.train)
    assert all(equal(one.tests[case], same.tests[case]) for case in one.tests)
    assert not torch.equal(one.train.x.sum(2), other.train.x.sum(2))
    assert not torch.equal(one.train.y, other.train.y)
    assert not torch.equal(one.tests["0.1"].y, other.tests["0.1"].y)


def test_one_purpose_does_not_disturb_another() -> None:
    base = digit_federation("rc_mnist", SMALL, 0)
    other_tests = digit_federation("rc_mnist", dataclasses.replace(SMALL, p_test=(0.7,), test_per_client=50), 0)
    assert equal(base.train, other_tests.train)
    assert other_tests.spectrum == ("0.7",)
    other_train = digit_federation("rc_mnist", dataclasses.replace(SMALL, p_train=(0.5,) * 4, holdout=20), 0)
    assert all(equal(base.tests[case], other_train.tests[case]) for case in base.tests)


def test_the_same_integer_seed_gives_train_and_test_different_noise() -> None:
    settings = dataclasses.replace(SMALL, train_per_client=100)
    federation, rows = digit_federation("rc_mnist", settings, 0), assignment(settings, 0)
    labels = embedded_digits("mnist").labels
    train = federation.train.y != (labels[rows.train] <= 4)
    test = federation.tests["0.1"].y != (labels[rows.test] <= 4)
    assert not torch.equal(train, test)


def test_several_contexts_per_client() -> None:
    settings = DigitSettings(p_train=((0.9, 0.2, 1.0), 0.7), train_per_client=10_000)
    federation = digit_federation("rc_fmnist", settings, 0)
    assert federation.contexts == 3
    assert federation.contexts_per_client == federation.notes["contexts"] == [3, 1]
    assert sorted(federation.train.context[0].bincount().tolist()) == [3333, 3333, 3334]
    agrees = colour_of(federation.train) == federation.train.y
    for context, p in enumerate((0.9, 0.2, 1.0)):
        assert_rate(agrees[0][federation.train.context[0] == context], p)
    assert_rate(agrees[1], 0.7)


@pytest.mark.parametrize("holdout", [1, 37, 150, 290])
def test_holdout_takes_its_share_of_each_context_and_changes_nothing_else(holdout: int) -> None:
    settings = dataclasses.replace(SMALL, p_train=((0.9, 0.8), (0.7, 0.6, 0.5)))
    whole = digit_federation("rc_mnist", settings, 0)
    parted = digit_federation("rc_mnist", dataclasses.replace(settings, holdout=holdout), 0)
    assert parted.validation is not None
    assert parted.validation.y.shape == (2, holdout)
    assert parted.notes["sizes"] == parted.sizes.tolist() == [300 - holdout] * 2

    def rows(split: Split, client: int) -> list[tuple[float, ...]]:
        parts = (split.x[client].flatten(1), split.y[client, :, None], split.context[client, :, None].float())
        return sorted(map(tuple, torch.cat(parts, 1).tolist()))

    for client, contexts in enumerate((2, 3)):
        # 300 images in all and no image twice: equality as multisets is disjointness of the two parts.
        assert sorted(rows(parted.train, client) + rows(parted.validation, client)) == rows(whole.train, client)
        assert len(set(rows(whole.train, client))) == 300
        shares = parted.validation.context[client].bincount(minlength=contexts)
        assert bool((shares - holdout / contexts).abs().max() <= 1)


def test_grayscale_shows_the_shape_in_both_channels() -> None:
    grey = digit_federation("rc_mnist", dataclasses.replace(SMALL, grayscale=True), 0)
    colour = digit_federation("rc_mnist", SMALL, 0)
    assert torch.equal(grey.train.x[:, :, 0], colour.train.x.sum(2))
    assert torch.equal(grey.train.x[:, :, 0], grey.train.x[:, :, 1])
    assert torch.equal(grey.train.y, colour.train.y)
    assert torch.equal(grey.tests["0.1"].x, grey.tests["0.9"].x)


def test_data_root_is_where_official_files_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no file train-images-idx3-ubyte"):
        digit_federation("rc_mnist", dataclasses.replace(SMALL, data_root=str(tmp_path)), 0)


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"p_train": [0.9, 1.1]}, r"data.p_train = .*at most 1"),
        ({"p_train": [0.9, [0.5, -0.1]]}, r"data.p_train = .*at least 0"),
        ({"p_train": [float("nan")]}, r"data.p_train = .*finite"),
        ({"p_test": [2]}, r"data.p_test = .*at most 1"),
        ({"p_train": []}, "data.p_train is empty"),
        ({"p_train": [0.9, []]}, r"data.p_train\[1\] is empty"),
        ({"p_test": []}, "data.p_test is empty"),
        ({"p_test": [0.1, 0.1]}, "data.p_test = .*no two"),
        ({"rotations": []}, "data.rotations is empty"),
        ({"rotations": [0, 45]}, "data.rotations = .*multiples of 90"),
        ({"label_noise": 1.5}, "data.label_noise"),
        ({"classes": 3}, "data.classes = 3: must be 2 or 10"),
        ({"holdout": 12_500}, "data.holdout = 12500: must be less than train_per_client = 12500"),
        ({"p_train": [0.9] * 5}, "5 clients would take 62500 of 50000 images; at most 10000 each would fit"),
        ({"test_per_client": 2_501}, "4 clients would take 10004 of 10000 images; at most 2500 each"),
        ({"train_per_client": 4, "holdout": 3, "p_train": [[0.9, 0.8]]}, "each of the 2 contexts"),
    ],
)
def test_mistakes_are_named(mapping: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        build(DigitSettings, mapping, "data")


def test_settings_made_by_hand_are_checked_too() -> None:
    with pytest.raises(UserError, match="p_train"):
        digit_federation("rc_mnist", DigitSettings(p_train=(1.5,)), 0)


def test_registry() -> None:
    settings: Any = build(BENCHMARKS["rc_fmnist"].settings, {"train_per_client": 20, "test_per_client": 10}, "data")
    assert build_federation("rc_fmnist", settings, 3).name == "rc_fmnist"
    with pytest.raises(UserError, match="did you mean rc_mnist"):
        build_federation("rc_mnits", settings, 0)
    with pytest.raises(UserError, match="takes settings of type StructuralSettings"):
        build_federation("structural", settings, 0)


def test_turning_four_times_is_the_identity() -> None:
    images = torch.randint(256, (3, 2, 14, 14), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    digits = Digits(images[:, 0], torch.zeros(3, dtype=torch.uint8))
    rows = torch.arange(3)[None]
    once = turned(digits, rows, DigitSettings(p_train=(0.9,), rotations=(90,)))[0]
    assert not torch.equal(once, digits.images)
    for _ in range(3):
        once = turned(Digits(once, digits.labels), rows, DigitSettings(p_train=(0.9,), rotations=(90,)))[0]
    assert torch.equal(once, digits.images)
