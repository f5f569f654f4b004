"""Environments with the wheel and with exactly those libraries that pip would install beside it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.commands import ROOT

NAME = "perinvfl"
PYTHONS = ("python3.11", "python3.12", "python3.13")
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))


def build_wheel(folder: Path) -> Path:
    line = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(line, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def pip(*words: object) -> None:
    """pip of this environment; "--python" in front of a command names another one."""
    line = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the folder in which its programs are called."""

    folder: Path
    here: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    @property
    def packages(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))

    def call(self, *words: object, program: str = "python") -> subprocess.CompletedProcess[str]:
        without = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "COLUMNS")}
        line = [str(self.folder / "bin" / program), *map(str, words)]
        env = {**without, "OMP_NUM_THREADS": "1"}
        return subprocess.run(line, cwd=self.here, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def pythons() -> dict[str, Path]:
    """Interpreters of every Python that the package is for: on the path, or of pyenv."""
    found = {}
    for name in PYTHONS:
        for place in (Path(shutil.which(name) or name), *PYENV.glob(f"versions/*/bin/{name}")):
            # What is on the path may stand for a version of pyenv that is not chosen.
            if place.exists() and subprocess.run([place, "-c", ""], capture_output=True).returncode == 0:
                found[name] = place
                break
    return found


def empty_environment(
    folder: Path, here: Path, paths: Iterable[Path] = (), python: Path = Path(sys.executable)
) -> Environment:
    """One that sees these paths, after its own packages; .pth files there, such as that of a checkout, are not read."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    made = Environment(folder, here)
    (made.packages / "libraries.pth").write_text("".join(f"{path}\n" for path in paths))
    return made


def required(wheel: Path, extra: str = "") -> dict[str, Distribution]:
    """Every distribution that pip installs for the wheel with this extra, by name, as the metadata of each say.

    A version that the requirement does not allow is an error, as it is for pip.
    """
    (root,) = Distribution.discover(path=[str(wheel)])
    found: dict[str, Distribution] = {}
    waiting, done = [(NAME, ""), (NAME, extra)], set()
    while waiting:
        name, asked = waiting.pop()
        if (name, asked) in done:
            continue
        done.add((name, asked))
        if name != NAME:
            found[name] = distribution(name)
        for text in (root if name == NAME else found[name]).requires or ():
            needs = Requirement(text)
            if needs.marker is None or needs.marker.evaluate({"extra": asked}):
                other = canonicalize_name(needs.name)
                if other != NAME:
                    version = distribution(other).version
                    assert needs.specifier.contains(version, prereleases=True), f"{name} needs {text}, not {version}"
                waiting += [(other, ""), *((other, part) for part in needs.extras)]
    return found


def link(distributions: Iterable[Distribution], folder: Path) -> None:
    """Make the files of these distributions visible in a folder, and no others."""
    for found in distributions:
        for file in found.files or ():
            if file.parts[0] == "..":
                continue  # a program
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(file.locate())


CALLS = """
import contextlib, io, json, sys
from perinvfl.cli import call

answers = []
for line in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = call(line)
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


def answers(environment: Environment, lines: Sequence[Sequence[str]]) -> list[tuple[int, str, str]]:
    """Several command lines in one process of the installed package: a process each would take twice the time.

    Processes that these start may print to the same place, before the last line.
    """
    done = environment.call("-c", CALLS, json.dumps(lines))
    assert done.returncode == 0, done.stdout + done.stderr
    return [(code, out, err) for code, out, err in json.loads(done.stdout.splitlines()[-1])]
