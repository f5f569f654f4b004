"""Views of images against slow references."""

import math

import pytest
import torch

from perinvfl.data.benchmarks.bird_settings import BirdSettings
from perinvfl.data.images import EDGE, GREY, RADII, Augmentation, augmented, for_all, in_middle, without_middle
from perinvfl.errors import UserError


def test_views_are_flips_and_shifts_mirrored_at_the_edge() -> None:
    image = torch.arange(25, dtype=torch.uint8).view(1, 1, 5, 5)
    every = Augmentation(flip=True, crop=1)
    assert every.views == 18 and Augmentation().views == 1
    shown = augmented(image, torch.zeros(18, dtype=torch.int64), torch.arange(18), every)
    assert len({tuple(view.flatten().tolist()) for view in shown}) == 18
    plain = shown[4, 0]  # down 1, right 1: not shifted
    assert torch.equal(plain, image[0, 0]) and torch.equal(shown[13, 0], image[0, 0].flip(1))
    up = shown[3, 0]  # one line up: what is missing above is mirrored
    assert torch.equal(up[1:], image[0, 0, :-1]) and torch.equal(up[0], image[0, 0, 1])


def test_the_middle_is_a_round_patch_with_a_soft_edge() -> None:
    found = in_middle(torch.tensor([0.5, 0.9]), 6, 8)
    for k, radius in enumerate((0.5, 0.9)):
        for i in range(6):
            for j in range(8):
                away = math.hypot((i + 0.5) / 3 - 1, (j + 0.5) / 4 - 1)
                assert float(found[k, i, j]) == pytest.approx(1 / (1 + math.exp((away - radius) / EDGE)), abs=1e-5)


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_an_image_keeps_its_middle_and_takes_the_border_of_the_one_before_it(kind: torch.dtype) -> None:
    images = torch.randint(0, 256, (5, 3, 8, 8)).to(kind)
    settings = Augmentation(flip=True, middle=(0.3, 0.9))
    assert settings.views == 2 * RADII
    places, view = torch.tensor([3, 0, 4]), torch.tensor([0, 2 * 7, 2 * 15 + 1])  # the last one mirrored
    alone = augmented(images, places, view % 2, Augmentation(flip=True)).double()
    shown = augmented(images, places, view, settings)
    assert shown.dtype == kind
    for k, level in enumerate((0, 7, 15)):
        radius = 0.3 + 0.6 * (level + 0.5) / RADII
        share = in_middle(torch.tensor([radius]), 8, 8)[0].double()
        mixed = share * alone[k] + (1 - share) * alone[k - 1]
        torch.testing.assert_close(shown[k].double(), mixed, rtol=0, atol=0.501 if kind == torch.uint8 else 1e-3)


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_views_of_the_first_radius_may_keep_all_of_the_image(kind: torch.dtype) -> None:
    images = torch.randint(0, 256, (4, 3, 8, 8)).to(kind)
    some, all_ = (Augmentation(flip=True, middle=(0.5, 0.5), some_whole=whole) for whole in (True, False))
    assert for_all([Augmentation(flip=True), some]) == some and some.views == all_.views
    places, view = torch.arange(4), torch.tensor([0, 1, 2 * 3, 2 * 15 + 1])
    shown = augmented(images, places, view, some)
    assert torch.equal(shown[:2], augmented(images, places, view % 2, Augmentation(flip=True))[:2])
    assert torch.equal(shown[2:], augmented(images, places, view, all_)[2:])


def test_what_lies_in_the_middle_cannot_be_seen_without_it() -> None:
    images = torch.randint(0, 256, (2, 3, 3, 16, 16), dtype=torch.uint8)
    other = images.clone()
    inside = in_middle(torch.tensor([0.6]), 16, 16)[0] > 0.999
    assert 0.1 < inside.float().mean() < 0.3
    other[..., inside] = 255 - other[..., inside]
    assert torch.equal(without_middle(images, 0.7), without_middle(other, 0.7))
    painted = without_middle(images, 0.7)
    assert (painted[..., inside] == GREY).all() and torch.equal(painted[..., 0, :], images[..., 0, :])
    assert without_middle(images.float(), 0.7)[..., inside].max() < 0.1


@pytest.mark.parametrize("middle", [(0.5,), (0.8, 0.4), (0.0, 0.5), (0.4, 2.0)])
def test_radii_that_mean_nothing_are_refused(middle: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match=r"data.middle = .*must be two radii"):
        BirdSettings(middle=middle).check("data")
