"""Which tests stay in one process of pytest-xdist, and which begin first.

The tests of a file stay together, so that its fixtures are made once; so do those of a few files. What takes longest
begins first, or one process would end long after the other. (The mark `xdist_group` does nothing with pytest 9.)
"""

from typing import Any

from xdist.scheduler import LoadScopeScheduling

TOGETHER = {  # by the beginning of a test's name
    "tests/flower/test_process": "one deployment of real processes",
    "tests/reproduce/": "published records, read once",
}
APART = (  # tests that share nothing, in files that would keep one process busy to the end
    "tests/docs/test_notebooks.py",
    "tests/docs/test_pages.py",
    "tests/flower/test_app.py",
    "tests/flower/test_parity.py",
    "tests/models/test_resnet.py",
    "tests/runs/test_resume.py",
    "tests/test_imports.py",
)
FIRST = tuple(
    f"tests/{folder}/" for folder in ("flower", "docs", "install", "reproduce", "report", "runs", "models", "export")
)


def group_of(test: str) -> str:
    """What stays together has the same."""
    for beginning, group in TOGETHER.items():
        if test.startswith(beginning):
            return group
    return test if test.startswith(APART) else test.partition("::")[0]


def order_of(test: str) -> tuple[int, int]:
    """What is small comes first."""
    together = 0 if test.startswith(tuple(TOGETHER)) else 1
    return min((place for place, folder in enumerate(FIRST) if test.startswith(folder)), default=len(FIRST)), together


class Scheduler(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def make_scheduler(config: Any, log: Any) -> Scheduler:
    config.option.loadscopereorder = False  # groups begin in the order of the tests
    return Scheduler(config, log)
