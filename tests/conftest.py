"""Shared by the tests: one thread, since models this small only wait for each other on more; and who runs what."""

from typing import Any

import pytest
import torch

from tests import distribution


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: distribution.order_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    return distribution.make_scheduler(config, log)
