from typing import Any

import torch

from perinvfl.core.seeding import derived_seed, generator


def test_seeds_are_the_same_forever() -> None:
    assert derived_seed(0, "train", 3) == 8484224544305657519
    assert torch.equal(torch.rand(4, generator=generator(1, "a")), torch.rand(4, generator=generator(1, "a")))


def test_every_part_of_the_purpose_counts() -> None:
    purposes: list[tuple[Any, ...]] = [
        (0,),
        (1,),
        (0, "a"),
        (0, "b"),
        (0, "a", 1),
        (0, "a", 2),
        (0, "a1"),
        (0, 1, "a"),
        (0, "a", "1"),
    ]
    seeds = [derived_seed(*purpose) for purpose in purposes]
    assert len(set(seeds)) == len(purposes)
    assert all(0 <= seed < 2**63 for seed in seeds)
