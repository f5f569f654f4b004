"""Shared by the tests: one thread, since models this small only wait for each other on more; and who runs what."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from perinvfl.algorithms import ALGORITHMS
from tests import distribution
from tests.commands import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser


if not torch.cuda.is_available():  # before anybody imports Triton: kernels of GPUs are computed step by step
    os.environ["TRITON_INTERPRET"] = "1"

torch.set_num_threads(1)  # also for what is made before the first test of a file


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Again before each test: some change it."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: distribution.order_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    return distribution.make_scheduler(config, log)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from tests.browser import chromium  # it takes a second to import, and few tests need it

    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def made_sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of the made-up hospitals of the examples."""
    path = tmp_path_factory.mktemp("made_sites") / "sites.csv"
    subprocess.run([sys.executable, ROOT / "examples/make_sites.py", path], check=True)
    return path


@pytest.fixture(autouse=True, scope="module")
def _algorithms_as_before() -> Iterator[None]:
    """An algorithm of one's own that a test imports registers itself, and would be one of ours to the next file."""
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)
