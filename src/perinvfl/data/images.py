"""Random views of training images, made on the device from one number per sample; and images without their middle."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RADII = 16  # different middles between the least and the most
WHOLE = 2.0  # a radius that keeps all of an image
EDGE = 0.03  # how soft the edge of a middle is, in halves of a side
GREY = 115  # what stands for a middle that is not shown: between black and white, as photographs are on average


@dataclass(frozen=True)
class Augmentation:
    flip: bool = False  # mirrored or not
    crop: int = 0  # shifted by at most so many pixels each way, what is missing mirrored from within
    middle: tuple[float, ...] = ()  # least and most radius of what is kept; around it, another image of the batch
    some_whole: bool = False  # views with the first of the radii keep all of the image

    @property
    def views(self) -> int:
        """How many views of one image there are; 1: the image itself alone."""
        return self._placed * (RADII if self.middle else 1)

    @property
    def _placed(self) -> int:
        return (1 + self.flip) * (2 * self.crop + 1) ** 2

    def radius(self, view: Tensor) -> Tensor:
        """[B] in halves of a side."""
        (least, most), number = self.middle, view // self._placed
        radius = least + (most - least) * (number + 0.5) / RADII
        return torch.where(number == 0, WHOLE, radius) if self.some_whole else radius


AS_IT_IS = Augmentation()


def for_all(augmentations: Sequence[Augmentation]) -> Augmentation:
    """One that shows every view of each of these, which differ at most in whether they exchange some borders."""
    return max(augmentations, key=lambda augmentation: augmentation.views)


def augmented(images: Tensor, places: Tensor, view: Tensor, augmentation: Augmentation) -> Tensor:
    """[B, C, H, W], channels last in memory: the images at these places, each in the view of its number."""
    reach = augmentation.crop
    span = 2 * reach + 1
    down, right, mirrored = view % span, view // span % span, view // span**2 % 2 == 1 if augmentation.flip else None

    def lines(shift: Tensor, size: int) -> Tensor:  # [B, size] which line is shown where
        line = torch.arange(size, device=images.device) + (shift - reach)[:, None]
        return size - 1 - (size - 1 - line.abs()).abs()  # mirrored at both edges

    rows, columns = lines(down, images.shape[-2]), lines(right, images.shape[-1])
    if mirrored is not None:
        columns = torch.where(mirrored[:, None], images.shape[-1] - 1 - columns, columns)
    shown = images[places[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # [B, H, W, C]
    if augmentation.middle:
        middle = in_middle(augmentation.radius(view), images.shape[-2], images.shape[-1])[..., None]
        shown = _blend(middle, shown, shown.roll(1, 0))  # batches are drawn at random, so the next one is anyone
    return shown.permute(0, 3, 1, 2)


def without_middle(images: Tensor, radius: float) -> Tensor:
    """[..., H, W] images, the middle painted over: grey where numbers are bytes, else 0."""
    middle = in_middle(torch.tensor([radius]), images.shape[-2], images.shape[-1])[0]
    paint = torch.full((), GREY if images.dtype == torch.uint8 else 0, dtype=images.dtype)
    return _blend(middle.to(images.device), paint.to(images.device), images)


def in_middle(radius: Tensor, height: int, width: int) -> Tensor:
    """[B, H, W] 1 within so many halves of a side of the middle, 0 outside, with a soft edge."""
    down, right = (
        (torch.arange(size, device=radius.device) + 0.5) * 2 / size - 1 for size in (height, width)
    )  # -1 to 1
    distance = (down[:, None] ** 2 + right**2).sqrt()
    return torch.sigmoid((radius[:, None, None] - distance) / EDGE)


def _blend(share: Tensor, first: Tensor, second: Tensor) -> Tensor:
    mixed = share * first + (1 - share) * second
    return mixed.round().to(first.dtype) if first.dtype == torch.uint8 else mixed.to(first.dtype)
