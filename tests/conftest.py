"""Shared by the tests: one thread, since models this small only wait for each other on more; and who runs what."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from perinvfl.algorithms import ALGORITHMS
from tests import distribution


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: distribution.order_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    return distribution.make_scheduler(config, log)


@pytest.fixture(autouse=True, scope="module")
def _algorithms_as_before() -> Iterator[None]:
    """An algorithm of one's own that a test imports registers itself, and would be one of ours to the next file."""
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)
