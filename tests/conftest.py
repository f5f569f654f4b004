"""Shared by the tests: one thread, since models this small only wait for each other on more."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
