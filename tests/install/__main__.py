"""Installs by pip, as a user makes them: `make installs`, or python -m tests.install [EXTRA | PYTHON ...].

Each extra in an environment of its own: the wheel is installed, the job is refused, the first command of the message is
run, the job works; then the second command of the message is run in a clone of the project, and the job works again.

Each Python that is found, 3.11 to 3.13: the wheel is installed, and what a user does first works in an empty folder.
PyTorch is downloaded for each, which on another Python than this one may take gigabytes.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.commands import ROOT
from tests.install.environments import Environment, build_wheel, empty_environment, pip, pythons
from tests.install.jobs import JOBS, UNNAMED, Job, first_day, make_runs, refusals, results

CONSTRAINTS = ("--constraint", ROOT / "constraints.txt")


def with_wheel(python: Path, wheel: Path, folder: Path) -> Environment:
    (folder / "here").mkdir(parents=True)
    made = empty_environment(folder / "environment", folder / "here", python=python)
    pip("--python", made.python, "install", *CONSTRAINTS, wheel)
    return made


def commands(said: str) -> tuple[list[str], list[str]]:
    """What pip is to be called with, in any folder and in that of the project, as a message says."""
    anywhere, checkout = re.findall(r"pip (install .*?\"\S*\[\w+\]\")", said)
    return anywhere.replace('"', "").split(), checkout.replace('"', "").split()


def check_extra(extra: str, job: Job, wheel: Path, clone: Path, folder: Path) -> list[str]:
    """What does not work with this extra."""
    made = with_wheel(Path(sys.executable), wheel, folder)
    make_runs(made)
    if extra in UNNAMED:
        pip("--python", made.python, "install", *CONSTRAINTS, f"{wheel}[{extra}]")
        return results(made, job)
    anywhere, in_clone = commands(refusals(made, job)[0])
    pip("--python", made.python, *anywhere, *CONSTRAINTS)
    failed = results(made, job)
    subprocess.run([sys.executable, "-m", "pip", "--python", made.python, "-q", *in_clone], cwd=clone, check=True)
    return failed + results(made, job)


def main(names: list[str]) -> int:
    found = pythons()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        wheel, clone = build_wheel(place / "wheel"), place / "clone"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        for name in names or [*JOBS, *found]:
            if name in found:
                wrong = first_day(with_wheel(found[name], wheel, place / name))
            else:
                wrong = check_extra(name, JOBS[name], wheel, clone, place / name)
            print(f"{name}: {'; '.join(wrong) or 'works'}", flush=True)
            failed += bool(wrong)
            shutil.rmtree(place / name)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
