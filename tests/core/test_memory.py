"""Memory that is freed where clients take turns is kept for the next, unless the user has told malloc otherwise."""

import ctypes
import os
import subprocess
import sys

import pytest

# Blocks of a megabyte, as the parts of a step are, made and freed again and again.
BLOCKS = """
import resource
import torch
from perinvfl.algorithms import FedAvg
from perinvfl.data.benchmarks.random import random_federation
from perinvfl.engine.simulation import Simulation
from perinvfl.learning.training import Training

Simulation([FedAvg()], [random_federation()], [0], Training(executor="loop", device="cpu"))
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(2**18) for _ in range(64)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 64 * 256


def new_pages(**environment: str) -> int:
    own = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")} | environment
    return int(subprocess.check_output([sys.executable, "-c", BLOCKS], env=own, text=True))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="malloc of this system cannot be told")
def test_freed_memory_is_used_again() -> None:
    assert new_pages() < PAGES / 10
    assert new_pages(MALLOC_MMAP_THRESHOLD_="131072") > PAGES / 2  # as the user wishes
