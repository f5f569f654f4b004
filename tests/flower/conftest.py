"""One federation of real processes for all the tests that need one, for as long as they last."""

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
        processes.warm.close()


@pytest.fixture
def federation(_processes: Processes, request: pytest.FixtureRequest) -> Iterator[Processes]:
    _processes.whole()
    yield _processes
    if not request.node.stash.get(ANOTHER, False):
        _processes.close()  # sites that ask for work all the time would slow down the other tests


ANOTHER = pytest.StashKey[bool]()  # whether the test that comes next needs the processes too


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    item.stash[ANOTHER] = "federation" in getattr(nextitem, "fixturenames", ())
