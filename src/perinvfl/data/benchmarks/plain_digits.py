"""MNIST and Fashion-MNIST as they are, dealt out to clients by their labels: the data that papers on personalized
federated learning compare on.

Images 0 to 49999 of the official training file are dealt out by a partition; each client keeps a share of its own for a
test. Images 50000 to 59999 are a second test, the same for every client: all classes, about equally often. Images are
those inside the package, 14 x 14 pixels.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from perinvfl.core.hyper import check_bounds, hyper
from perinvfl.core.seeding import generator
from perinvfl.data.benchmarks.digits import TEST_IMAGES, TRAIN_IMAGES
from perinvfl.data.benchmarks.sources import DigitName, Digits, embedded_digits, official_digits
from perinvfl.data.constant import constant_scores
from perinvfl.data.federation import Federation, Split
from perinvfl.data.own.division import Division
from perinvfl.data.own.files import SAME, federation_of
from perinvfl.data.own.rows import Rows
from perinvfl.data.partition import Dealing, Kind, deal
from perinvfl.errors import UserError

PlainBenchmark = Literal["mnist", "fmnist"]
SOURCES: dict[PlainBenchmark, DigitName] = {"mnist": "mnist", "fmnist": "fashion"}
OWN, ALL = "own classes", "all classes"  # names of the two tests
GARMENTS = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CLASSES: dict[PlainBenchmark, tuple[str, ...]] = {"mnist": tuple("0123456789"), "fmnist": GARMENTS}


@dataclass(frozen=True)
class PlainDigitSettings(Dealing):
    clients: int = hyper(
        10,
        "number of clients among which the images are divided; with more, each has fewer; the default gives "
        "5,000 to each",
        symbol="N",
        least=1,
    )
    partition: Kind = hyper(
        "dirichlet",
        "how images are divided among clients by their classes, which makes clients differ: dirichlet, the "
        "default, gives them unequal shares of each class, pathological a few classes each, similarity mostly "
        "images sorted by class; even divides at random",
    )
    images: int = hyper(
        TRAIN_IMAGES,
        "number of images to divide among clients, drawn at random; fewer run faster; the default is all of them",
        least=1,
        most=TRAIN_IMAGES,
    )
    test_share: float = hyper(
        0.2,
        "share of a client's own images kept for testing, which shows how well a model serves its client; 0.2 "
        "keeps every fifth",
        least=0,
        most=0.9,
    )
    holdout: float = hyper(
        0.0,
        "share of the training samples that is kept out of training, so that settings can be chosen by them; "
        "0 keeps none out",
        least=0,
        most=0.9,
    )
    test_images: int = hyper(
        2000,
        "number of further images, of all classes, on which every client is tested as well, which shows what "
        "a model knows beyond its client's classes; 0 uses none",
        least=0,
        most=TEST_IMAGES,
    )
    data_root: str = hyper(
        "",
        "folder of the official idx files, to read images from there; empty reads those inside the package, "
        "which need no download",
    )

    def check(self, where: str) -> None:
        check_bounds(self, where)
        self.division.check(where)
        if not self.test_share and not self.test_images:
            raise UserError(f"{where}.test_share = 0 and test_images = 0 leave nothing to test on.")

    @property
    def division(self) -> Division:
        return Division(test_share=self.test_share, holdout=self.holdout, standardise=False)


def plain_federation(name: PlainBenchmark, settings: PlainDigitSettings, seed: int) -> Federation:
    settings.check(name)
    source = SOURCES[name]
    digits = official_digits(settings.data_root, source) if settings.data_root else embedded_digits(source)
    chosen = torch.randperm(TRAIN_IMAGES, generator=generator(seed, name, "images"))[: settings.images].sort().values
    rows = _rows(name, digits, chosen, settings, seed)
    federation = federation_of(rows, settings.division, seed, name=name)
    tests = {OWN: federation.tests[SAME]} if SAME in federation.tests else {}
    if settings.test_images:
        shared = torch.randperm(TEST_IMAGES, generator=generator(seed, name, "tests"))[: settings.test_images]
        tests[ALL] = _seen_by_all(digits, TRAIN_IMAGES + shared.sort().values, settings.clients)
    constant = constant_scores("multiclass", federation.train, tests)
    return dataclasses.replace(
        federation, tests=tests, spectrum=(next(iter(tests)),), notes={**federation.notes, "constant": constant}
    )


def _rows(name: PlainBenchmark, digits: Digits, chosen: Tensor, settings: PlainDigitSettings, seed: int) -> Rows:
    labels = digits.labels[chosen].long()
    return Rows(
        kind="images",
        x=_pixels(digits, chosen),
        y=labels.double(),
        client=deal(labels, settings.clients, settings.partition, settings, seed),
        context=torch.zeros_like(labels),
        task="multiclass",
        clients=tuple(str(number + 1) for number in range(settings.clients)),
        contexts=("all",),
        classes=CLASSES[name],
        features=(),
    )


def _pixels(digits: Digits, chosen: Tensor) -> Tensor:
    """[n, 1, 14, 14] from 0 to 1."""
    return digits.images[chosen].unsqueeze(1) / 255


def _seen_by_all(digits: Digits, chosen: Tensor, clients: int) -> Split:
    """[N, M, ...] that share their memory."""
    parts = (_pixels(digits, chosen), digits.labels[chosen].long(), torch.zeros_like(chosen))
    return Split(*(part.expand(clients, *part.shape) for part in parts))
