"""Where federations come from: each benchmark turns settings and a seed into a `Federation`.

`sources` reads images, `digits` colours and turns them (RC-MNIST, RC-FMNIST), `structural` draws from linear structural
equations whose right answer is known, `planted` draws tables with a shortcut, `random` makes tiny data of every shape.
`plain_digits` deals images out by their labels (MNIST, Fashion-MNIST). `heart_disease` holds the patients of four
hospitals.
`birds` deals birds and backgrounds out; `waterbird` makes the pictures from photographs (`photos`, kept in an `album`),
`drawn` draws them. `files` reads data that a user brings.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from perinvfl.core.config import suggest
from perinvfl.core.memory import refusing_too_large
from perinvfl.data.benchmarks.digits import DigitSettings, digit_federation
from perinvfl.data.benchmarks.drawn import DrawnSettings, drawn_federation
from perinvfl.data.benchmarks.heart_disease import HeartSettings, heart_federation
from perinvfl.data.benchmarks.plain_digits import PlainDigitSettings, plain_federation
from perinvfl.data.benchmarks.planted import PlantedSettings, planted_federation
from perinvfl.data.benchmarks.random import RandomSettings, random_federation
from perinvfl.data.benchmarks.structural import StructuralSettings, structural_federation
from perinvfl.data.benchmarks.waterbird import WaterbirdSettings, waterbird_federation
from perinvfl.data.federation import Federation, Origin
from perinvfl.data.own.files import FileSettings, file_federation
from perinvfl.data.own.sites import SitesSettings, refuse
from perinvfl.errors import UserError


@dataclass(frozen=True)
class Benchmark:
    settings: type  # a dataclass of `hyper` fields
    build: Callable[[Any, int], Federation]  # from an instance of it and a seed
    doc: str


BENCHMARKS: dict[str, Benchmark] = {
    "rc_mnist": Benchmark(
        DigitSettings,
        partial(digit_federation, "rc_mnist"),
        "handwritten digits: each client's are rotated differently, the colour is a shortcut",
    ),
    "rc_fmnist": Benchmark(
        DigitSettings,
        partial(digit_federation, "rc_fmnist"),
        "pictures of clothes: each client's are rotated differently, the colour is a shortcut",
    ),
    "mnist": Benchmark(
        PlainDigitSettings,
        partial(plain_federation, "mnist"),
        "handwritten digits as they are, divided among clients by their labels",
    ),
    "fmnist": Benchmark(
        PlainDigitSettings,
        partial(plain_federation, "fmnist"),
        "pictures of clothes as they are, divided among clients by their labels",
    ),
    "waterbird": Benchmark(
        WaterbirdSettings,
        waterbird_federation,
        "photographs of birds before land and water: clients have different species, the background is a shortcut",
    ),
    "drawn_birds": Benchmark(
        DrawnSettings,
        drawn_federation,
        "drawn birds before drawn land and water, to try WaterBird's experiments without photographs",
    ),
    "structural": Benchmark(
        StructuralSettings,
        structural_federation,
        "linear structural equations of Theorem 3, with the best invariant weights known",
    ),
    "planted": Benchmark(
        PlantedSettings,
        planted_federation,
        "tables with a planted shortcut: a column made from the label, more closely in some contexts than in others",
    ),
    "heart_disease": Benchmark(
        HeartSettings,
        heart_federation,
        "patients of four hospitals with and without a heart disease; one hospital may be left out as the test",
    ),
    "random": Benchmark(
        RandomSettings,
        lambda settings, seed: random_federation(**vars(settings), seed=seed),
        "tiny random data, to try things out",
    ),
    "file": Benchmark(
        FileSettings,
        file_federation,
        "your own data: a table, arrays or photographs",
    ),
    "sites": Benchmark(SitesSettings, refuse, "data that only the sites of a deployment have"),
}


def build_federation(benchmark: str, settings: Any, seed: int) -> Federation:
    """Make the federation of a named benchmark; `settings` is an instance of its `BENCHMARKS[...].settings`."""
    if benchmark not in BENCHMARKS:
        raise UserError(f'"{benchmark}" is not a benchmark{suggest(benchmark, list(BENCHMARKS))}')
    chosen = BENCHMARKS[benchmark]
    if not isinstance(settings, chosen.settings):
        raise UserError(
            f"{benchmark} takes settings of type {chosen.settings.__name__}, not {type(settings).__name__}."
        )
    with refusing_too_large(f"What {benchmark} makes by these settings"):
        made = chosen.build(settings, seed)
    return dataclasses.replace(made, origin=Origin(benchmark, settings, seed))
