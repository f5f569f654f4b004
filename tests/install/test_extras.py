"""Each extra alone: what it is for works with it, and without it the message says how to install it.

An environment holds the wheel and those distributions that pip would install with it and one extra; `make extras` does
the same with pip itself.
"""

import tomllib
from pathlib import Path

import pytest

from tests.commands import ROOT
from tests.install.environments import Environment, build_wheel, empty_environment, link, pip, required
from tests.install.jobs import JOBS, UNNAMED, make_runs, refusals, results

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages: the wheel and what it requires without extras."""
    folder = tmp_path_factory.mktemp("base")
    pip("install", "--no-deps", "--no-index", "--target", folder, wheel)
    link(required(wheel).values(), folder)
    return folder


@pytest.fixture(scope="module")
def plain(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment without extras, in a folder with finished runs of a table and all that the jobs read."""
    here = tmp_path_factory.mktemp("here")
    made = empty_environment(tmp_path_factory.mktemp("plain"), here, [base])
    make_runs(made)
    return made


@pytest.fixture
def alone(request: pytest.FixtureRequest, wheel: Path, base: Path, plain: Environment, tmp_path: Path) -> Environment:
    """The same with one extra, and no others."""
    made = empty_environment(tmp_path / "environment", plain.here, [base])
    without = required(wheel)
    more = {name: found for name, found in required(wheel, request.param).items() if name not in without}
    assert more
    link(more.values(), made.packages)
    return made


def test_every_extra_has_a_job() -> None:
    """But for `dev`, which holds all others; its job is to run these tests."""
    assert set(EXTRAS) - {"dev"} == set(JOBS)
    assert f"perinvfl[{','.join(sorted(JOBS))}]" in EXTRAS["dev"]


@pytest.mark.slow
@pytest.mark.parametrize(("alone", "extra"), [(extra, extra) for extra in JOBS], indirect=["alone"])
def test_an_extra_alone(alone: Environment, plain: Environment, extra: str) -> None:
    assert results(alone, JOBS[extra]) == []
    if extra not in UNNAMED:
        for said in refusals(plain, JOBS[extra]):
            assert f'pip install "perinvfl[{extra}]"' in said  # from a wheel
            assert f'pip install -c constraints.txt -e ".[{extra}]"' in said  # in a checkout
