"""RC-MNIST and RC-FMNIST: coloured digits whose rotation tells the client and whose colour tells the context.

The law is that of coloured MNIST (Arjovsky et al., 2019) with one rotation per client (the paper's "Detailed
experimental setup"). Training images are 0 to 49999 of the official training file, test images 50000 to 59999, no
image used twice. y = 1 for classes 0 to 4, flipped with probability `label_noise`; the colour agrees with y with
probability p; the image is in the channel of its colour and the other channel is zero; then it is turned by the
client's rotation.

With ten classes the label is the digit or garment itself, a noisy label is another one, drawn evenly, and there are ten
colours, hues around the colour circle with the same mean over three channels: the label's own with probability p, else
one of the nine others, drawn evenly.

In the paper each client has one training context. Here a client may have several, by giving a list in `p_train`.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from perinvfl.core.hyper import check_bounds, hyper
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.sources import Digits, embedded_digits, official_digits
from perinvfl.data.constant import constant_scores
from perinvfl.data.federation import Federation, Split, Task
from perinvfl.data.images import Augmentation
from perinvfl.errors import UserError

DigitBenchmark = Literal["rc_mnist", "rc_fmnist"]

TRAIN_IMAGES, TEST_IMAGES = 50_000, 10_000
PAPER_SPECTRUM = ("0.1", "0.2", "0.3", "0.4", "0.5")


@dataclass(frozen=True)
class DigitSettings:
    p_train: tuple[float | tuple[float, ...], ...] = hyper(
        (0.95, 0.90, 0.85, 0.80),
        "how often the colour agrees with the label in training, one entry per client; where it agrees more "
        "often than the shape does, it is a shortcut; a list gives that client several contexts, its images "
        "split evenly among them; the default is the paper's",
        symbol="p_train",
        least=0,
        most=1,
    )
    rotations: tuple[int, ...] = hyper(
        (0, 90, 180, 270),
        "degrees by which each client's images are rotated, counter-clockwise, so that clients differ; used "
        "in turn if there are more clients; the default is the paper's",
    )
    label_noise: float = hyper(
        0.25,
        "how often a label is flipped, in training and test, so that the shape predicts it less well than the "
        "colour; 0.25, the paper's, leaves 75 % as the most that a model can reach",
        least=0,
        most=1,
    )
    p_test: tuple[float, ...] = hyper(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.9, 1.0),
        "how often the colour agrees with the label in each test context; the lower, the more the shortcut "
        "misleads; the default is the paper's 0.1 to 0.5, and two contexts in which it still holds",
        symbol="p_test",
        least=0,
        most=1,
    )
    train_per_client: int = hyper(
        12_500,
        "training images per client, including those held out; fewer run faster, but models overfit sooner; "
        "the default gives all 50,000 to four clients",
        least=1,
    )
    test_per_client: int = hyper(
        2_500,
        "test images per client, the same ones in every test context, so that contexts differ by colour "
        "alone; the default gives all 10,000 to four clients",
        least=1,
    )
    holdout: int = hyper(
        0,
        "training images per client that are kept out of training, so that settings can be chosen by them; 0 "
        "keeps none out",
        least=0,
    )
    grayscale: bool = hyper(
        False,
        "remove the colour, so that only the shape is left to learn from, which shows what is possible "
        "without the shortcut; false keeps the colour",
    )
    leave_out: int = hyper(
        -1,
        "client, counted from 0, to leave out of training; the others' models are tested on its training "
        "contexts, which shows how they do at a new client; -1 leaves none out",
        least=-1,
    )
    classes: int = hyper(
        2,
        "number of classes: 2 separates the classes 0 to 4 from 5 to 9, in two colours, as in the paper; 10 "
        "separates all digits or garments, in ten colours, which is harder",
        later=True,
    )
    crop: int = hyper(
        0,
        "shift training images at random by up to this many pixels, against overfitting; 0 shifts none",
        least=0,
        later=True,
    )
    data_root: str = hyper(
        "",
        "folder of the official idx files, to read images from there; empty reads those inside the package, "
        "which need no download",
    )

    @property
    def clients(self) -> int:
        return len(self.p_train)

    @property
    def p_contexts(self) -> list[tuple[float, ...]]:
        """Per client, p of each of its training contexts."""
        return [p if isinstance(p, tuple) else (p,) for p in self.p_train]

    @property
    def folds_alike(self) -> bool:
        """Whether the data have the same shape whichever client is left out."""
        return len(set(map(len, self.p_contexts))) == 1

    @property
    def task(self) -> Task:
        return "binary" if self.classes == 2 else "multiclass"

    @property
    def outputs(self) -> int:
        return 1 if self.classes == 2 else self.classes

    def check(self, where: str) -> None:
        check_bounds(self, where)
        if self.classes not in (2, 10):
            raise UserError(f"{where}.classes = {self.classes}: must be 2 or 10.")
        for key in ("p_train", "rotations", "p_test"):
            if not getattr(self, key):
                raise UserError(f"{where}.{key} is empty: must have at least one entry.")
        if () in self.p_train:
            raise UserError(f"{where}.p_train[{self.p_train.index(())}] is empty: must have at least one entry.")
        if any(degrees % 90 for degrees in self.rotations):
            raise UserError(f"{where}.rotations = {self.rotations}: must be multiples of 90.")
        names = [case_name(p) for p in self.p_test]
        if len(set(names)) < len(names):
            raise UserError(f"{where}.p_test = {self.p_test}: no two test contexts may be the same.")
        for key, exist in (("train_per_client", TRAIN_IMAGES), ("test_per_client", TEST_IMAGES)):
            wanted = getattr(self, key)
            if self.clients * wanted > exist:
                raise UserError(
                    f"{where}.{key} = {wanted}: {self.clients} clients would take {self.clients * wanted} of "
                    f"{exist} images; at most {exist // self.clients} each would fit."
                )
        if self.leave_out >= self.clients or (self.leave_out >= 0 and self.clients == 1):
            raise UserError(f"{where}.leave_out = {self.leave_out}: must be one of several clients, counted from 0.")
        if self.holdout >= self.train_per_client:
            raise UserError(
                f"{where}.holdout = {self.holdout}: must be less than train_per_client = {self.train_per_client}."
            )
        for contexts in {len(p) for p in self.p_contexts}:
            if context_of_position(contexts, self.train_per_client)[~held_out(self)].unique().numel() < contexts:
                raise UserError(
                    f"{where}.train_per_client = {self.train_per_client} with holdout = {self.holdout}: must leave at "
                    f"least one training image to each of the {contexts} contexts of a client."
                )


class ImageSplit(NamedTuple):
    """Which images of the official training file each client gets."""

    train: Tensor  # [N, train_per_client] int64, 0 to 49999
    test: Tensor  # [N, test_per_client] int64, 50000 to 59999


def assignment(settings: DigitSettings, seed: int) -> ImageSplit:
    """Draw images without replacement across clients."""

    def draw(purpose: str, exist: int, each: int) -> Tensor:
        order = torch.randperm(exist, generator=generator(seed, "digits", purpose, "images"))
        return order[: settings.clients * each].view(settings.clients, each)

    train = draw("train", TRAIN_IMAGES, settings.train_per_client)
    test = draw("test", TEST_IMAGES, settings.test_per_client)
    return ImageSplit(train, TRAIN_IMAGES + test)


def digit_federation(name: DigitBenchmark, settings: DigitSettings, seed: int) -> Federation:
    settings.check(name)
    source: Literal["mnist", "fashion"] = "mnist" if name == "rc_mnist" else "fashion"
    digits = official_digits(settings.data_root, source) if settings.data_root else embedded_digits(source)
    images = assignment(settings, seed)

    y = noisy_labels(digits, images.train, settings, seed, "train")
    context = torch.stack([context_of_position(len(p), settings.train_per_client) for p in settings.p_contexts])
    p = torch.stack([torch.tensor(p)[row] for p, row in zip(settings.p_contexts, context, strict=True)])  # [N, M]
    x = coloured(turned(digits, images.train, settings), y, p, settings, seed, "train")
    held = held_out(settings)
    train, validation = Split(x, y, context), None
    if settings.holdout:
        train, validation = (Split(*(part[:, which] for part in train)) for which in (~held, held))

    if settings.leave_out >= 0:
        return _without(settings.leave_out, name, train, settings)

    # One draw of labels and of colours serves every test context, so that they differ by colour alone.
    y = noisy_labels(digits, images.test, settings, seed, "test")
    plain = turned(digits, images.test, settings)
    tests = {
        case_name(p): Split(
            coloured(plain, y, torch.full(y.shape, p), settings, seed, "test"), y, torch.zeros_like(images.test)
        )
        for p in settings.p_test
    }
    return Federation(
        name=name,
        task=settings.task,
        outputs=settings.outputs,
        contexts=max(map(len, settings.p_contexts)),
        train=train,
        tests=tests,
        spectrum=tuple(case for case in PAPER_SPECTRUM if case in tests) or tuple(tests),
        validation=validation,
        notes={
            "constant": constant_scores(settings.task, train, tests),
            "sizes": [settings.train_per_client - settings.holdout] * settings.clients,
            "contexts": [len(p) for p in settings.p_contexts],
        },
        augmentation=Augmentation(crop=settings.crop),
    )


def _without(left_out: int, name: str, train: Split, settings: DigitSettings) -> Federation:
    """The other clients, each tested on what the one left out would have trained on. No test image is touched."""
    others = [i for i in range(settings.clients) if i != left_out]
    whole = train.y.shape[1]
    some = torch.arange(min(settings.test_per_client, whole)) * whole // min(settings.test_per_client, whole)  # evenly
    unseen = Split(*(part[left_out, some].expand(len(others), *part[left_out, some].shape) for part in train))
    kept = Split(*(part[others] for part in train))
    return Federation(
        name=name,
        task=settings.task,
        outputs=settings.outputs,
        contexts=max(len(settings.p_contexts[i]) for i in others),
        train=kept,
        tests={"left-out": unseen},
        spectrum=("left-out",),
        notes={
            "constant": constant_scores(settings.task, kept, {"left-out": unseen}),
            "sizes": [settings.train_per_client - settings.holdout] * len(others),
            "contexts": [len(settings.p_contexts[i]) for i in others],
        },
        augmentation=Augmentation(crop=settings.crop),
    )


def case_name(p: float) -> str:
    return format(p, "g")


def context_of_position(contexts: int, images: int) -> Tensor:
    """[M] the context of each of a client's images: runs of equal length, give or take one."""
    return torch.arange(images) * contexts // images


def held_out(settings: DigitSettings) -> Tensor:
    """[M] bool: evenly spaced positions, so that every context gives its share; what lies there was drawn at random."""
    crossed = torch.arange(settings.train_per_client + 1) * settings.holdout // settings.train_per_client
    return crossed.diff() > 0


def noisy_labels(digits: Digits, images: Tensor, settings: DigitSettings, seed: int, purpose: str) -> Tensor:
    """[N, M] float32: 1 for classes 0 to 4 and 0 for the rest, flipped with probability `label_noise`.

    Of ten classes int64: the class, or with that probability another one.
    """
    noisy = torch.rand(images.shape, generator=generator(seed, "digits", purpose, "labels")) < settings.label_noise
    if settings.classes == 2:
        return ((digits.labels[images] < 5) ^ noisy).float()
    return _another(digits.labels[images].long(), ~noisy, seed, purpose, "other labels")


def _another(classes: Tensor, keep: Tensor, seed: int, purpose: str, what: str) -> Tensor:
    """The same class of ten where it is kept, elsewhere one of the nine others, drawn evenly."""
    step = torch.randint(1, 10, classes.shape, generator=generator(seed, "digits", purpose, what))
    return (classes + torch.where(keep, 0, step)) % 10


def turned(digits: Digits, images: Tensor, settings: DigitSettings) -> Tensor:
    """[N, M, 14, 14] uint8: each client's images under its rotation."""
    turns = [degrees // 90 for degrees in settings.rotations]
    own = [digits.images.index_select(0, rows) for rows in images]
    return torch.stack([torch.rot90(rows, turns[i % len(turns)], (-2, -1)) for i, rows in enumerate(own)])


def coloured(images: Tensor, y: Tensor, p: Tensor, settings: DigitSettings, seed: int, purpose: str) -> Tensor:
    """[N, M, 2, 14, 14] float32: the image in the channel of its colour, which agrees with y with probability p.

    Of ten classes [N, M, 3, 14, 14]: the image in its colour.
    """
    agrees = torch.rand(y.shape, generator=generator(seed, "digits", purpose, "colours")) < p
    if settings.classes == 2:
        colour = torch.where(agrees, y, 1 - y)
        lit = torch.stack([colour == 0, colour == 1], -1) | settings.grayscale  # [N, M, 2]
        return _scaled(images, torch.where(lit, 255.0, torch.inf))
    lit = ten_colours()[_another(y, agrees, seed, purpose, "other colours")]  # [N, M, 3]
    lit = torch.ones_like(lit) if settings.grayscale else lit
    return (images / 255).unsqueeze(-3) * lit[..., None, None]


def _scaled(images: Tensor, divisor: Tensor) -> Tensor:
    """[N, M, channels, 14, 14]: images over their divisor [N, M, channels], a client at a time: all but the result is
    small."""
    whole = torch.empty(*divisor.shape, *images.shape[-2:])
    for own, by, result in zip(images, divisor, whole, strict=True):
        result.copy_(own.unsqueeze(-3)).div_(by[..., None, None])  # twice as fast as bytes divided by floats
    return whole


def ten_colours() -> Tensor:
    """[10, 3] hues evenly around the circle in the plane where the three channels have mean 1/2."""
    hue = torch.arange(10)[:, None] / 10 - torch.arange(3) / 3
    return 0.5 + 0.5 * torch.cos(2 * math.pi * hue)
