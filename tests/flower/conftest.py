"""One federation of real processes for all the tests that need one."""

from collections.abc import Iterator

import pytest

from tests.flower.processes import Processes


@pytest.fixture(scope="session")
def _processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    processes = Processes(tmp_path_factory.mktemp("federation"))
    try:
        yield processes
    finally:
        processes.close()


@pytest.fixture
def federation(_processes: Processes) -> Processes:
    _processes.whole()
    return _processes
