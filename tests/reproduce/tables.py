"""Experiment files of two published tables at a tiny size, and what a test gets of them."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from perinvfl.results.search_records import SearchRecords, read_published
from perinvfl.runs.facts import Effort

RESULTS = Path(__file__).parents[2] / "results"
published = cache(read_published)  # the committed records, read once; by folder


class Made(NamedTuple):
    """A table that was made: its experiment file lies in the folder, the packed records in `out` below it."""

    folder: Path
    records: SearchRecords


FILE = """
name = "small"
[data]
benchmark = "rc_mnist"
train_per_client = 60
test_per_client = 40
holdout = 20
[model]
hidden = [8]
[training]
rounds = 4
evaluate_every = 2
[[algorithm]]
name = "fedavg"
[[algorithm]]
name = "perinvfl"
personal_optimizer = "adam"
[[algorithm]]
name = "fedavg"
label = "Shape only"
data.grayscale = true
"""
EFFORT = Effort(trials=3, finalists=2, seeds=(101, 102), longer=6, longer_settings=1)

INFERRED = """
name = "inferred"
[search]
trials = 3
finalists = 2
leave_out = false
seeds = [101, 102]
[data]
benchmark = "rc_mnist"
train_per_client = 60
test_per_client = 40
holdout = 20
[contexts]
infer = "hard"
use = "judge"
reference_rounds = 3
reference_rate = 0.01
[model]
hidden = [8]
[training]
rounds = 4
evaluate_every = 2
[[algorithm]]
name = "fedavg"
[[algorithm]]
name = "perinvfl"
label = "Balanced"
contexts.use = "balance"
personal_optimizer = "adam"
l2 = {from = 1e-4, to = 1e-3}
[[algorithm]]
name = "fedavg"
label = "Shape only"
data.grayscale = true
contexts.infer = "given"
"""
