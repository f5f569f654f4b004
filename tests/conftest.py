"""Shared by the tests: two threads, so that neither the tests nor their rounding hang on how many cores there are."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _two_threads() -> None:
    torch.set_num_threads(2)
