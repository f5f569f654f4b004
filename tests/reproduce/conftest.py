"""Two published tables from end to end, at a tiny size: search, clients left out, fresh seeds."""

import pytest

from perinvfl.reproduce.stages import reproduce
from perinvfl.runs.experiment import read_experiment
from tests.reproduce.tables import EFFORT, FILE, INFERRED, Made


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("published")
    (folder / "small.toml").write_text(FILE)
    experiment = read_experiment(folder / "small.toml")
    return Made(folder, reproduce(experiment, folder / "out", EFFORT, together=64, say=lambda line: None))


@pytest.fixture(scope="session")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Contexts are inferred, so that the rule without test data finds something to look at."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "inferred.toml").write_text(INFERRED)
    experiment = read_experiment(folder / "inferred.toml")
    return Made(folder, reproduce(experiment, folder / "out", experiment.effort, together=64, say=lambda line: None))
