"""What each extra is for, as command lines: with the extra they work, and without it they say how to install it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.commands import ROOT
from tests.install.environments import Environment, answers

SHORT = "--set training.rounds=1 --set seeds=[0] --quiet"
SMALL = """
name = "small"
seeds = [0]
[data]
benchmark = "random"
[training]
rounds = 1
[[algorithm]]
name = "fedavg"
"""


@dataclass(frozen=True)
class Job:
    """Lines of `perinvfl`, a program, or both; and the files that are there afterwards."""

    lines: tuple[str, ...] = ()
    program: str = ""
    makes: tuple[str, ...] = ()


ESTIMATOR = """
import perinvfl as pf
model = pf.PersonalInvariantClassifier(rounds=20, hidden=(8,))
model.fit([[0.0], [1.0], [2.0], [3.0]] * 10, ["low", "low", "high", "high"] * 10, client=["a"] * 20 + ["b"] * 20)
assert model.predict([[0.0], [3.0]], client="a").tolist() == ["low", "high"]
"""
# The documentation's own settings and extensions, with one page of classes and one notebook.
PAGES = """
import sys
from sphinx.cmd.build import main
sys.exit(main(["--fresh-env", "--keep-going", "--quiet", "docs", "pages"]))
"""
INDEX = """# Index

```{toctree}
reference
notebooks/new_algorithm
```
"""
FEDAVG = "runs/hospitals --method FedAvg --global"
JOBS = {
    "plot": Job(("plot runs/hospitals --out figures",), makes=("figures/*.svg", "figures/*.png", "figures/*.html")),
    "tables": Job(
        ("init rows.parquet --yes --force", "data check rows.safetensors --label y"),
        makes=("rows.toml",),
    ),
    "export": Job(
        (
            f"export {FEDAVG} --out model.onnx",
            "predict model.onnx hospitals.csv --out onnx.csv",
            f"export {FEDAVG} --out model.safetensors",
            "predict model.safetensors hospitals.csv --out safetensors.csv",
        ),
        makes=("model.onnx", "onnx.csv", "model.safetensors", "safetensors.csv"),
    ),
    "track": Job(
        (
            f"run hospitals.toml {SHORT} --out logged --track mlflow",
            f"run hospitals.toml {SHORT} --out watched --track tensorboard",
        ),
        makes=("logged/**/*.db", "watched/**/*tfevents*"),
    ),
    "docs": Job(program=PAGES, makes=("pages/index.html",)),
    "sklearn": Job(program=ESTIMATOR),
    "photos": Job(("data check photos", "data drawn_birds --preview birds.png"), makes=("birds.png",)),
    "ray": Job((f"run hospitals.toml {SHORT} --out on_ray --on ray",), makes=("on_ray/hospitals/*/finished.json",)),
    "optuna": Job(
        (f"sweep hospitals.toml {SHORT} --trials 1 --out searched --sampler optuna",), makes=("searched/**/best.toml",)
    ),
    "federation": Job(("federation local small.toml --out deployed",), makes=("deployed/**/finished.json",)),
}
# What perinvfl itself does not use, so that it has nothing to say about it.
UNNAMED = ("docs",)


def make_runs(plain: Environment) -> None:
    """Put what the jobs read into the folder of an environment without extras: finished runs, and files."""
    lines = ("data heart_disease", "init hospitals.csv", f"run hospitals.toml {SHORT}")
    for code, out, err in answers(plain, [line.split() for line in lines]):
        assert code == 0, out + err
    write_inputs(plain.here)


def first_day(environment: Environment) -> list[str]:
    """What fails of what a user does first, in an environment with the wheel alone."""
    lines = (
        "demo --set training.rounds=3",
        "run --preset recommended-rc_mnist --set training.rounds=2",
        "table beyond",
        "data heart_disease",
        "init hospitals.csv",
        "run hospitals.toml --set training.rounds=5",
        "report runs/hospitals",
    )
    example = 'import perinvfl as pf; print(pf.start(pf.load("planted"), rounds=5).run().evaluate())'
    return results(environment, Job(lines, example, ("report.html", "runs/demo/*/finished.json")))


def results(environment: Environment, job: Job) -> list[str]:
    """What a job failed to do, in an environment that has its extra."""
    failed = []
    if job.program:
        done = environment.call("-c", job.program)
        failed += [done.stdout + done.stderr] if done.returncode else []
    if job.lines:
        given = answers(environment, [line.split() for line in job.lines])
        failed += [f"{line}: {out}{err}" for line, (code, out, err) in zip(job.lines, given, strict=True) if code]
    return failed + [f"{made} was not made" for made in job.makes if not any(environment.here.glob(made))]


def refusals(environment: Environment, job: Job) -> list[str]:
    """What a job says in an environment without its extra: for each line a sentence, which says how to install it."""
    if job.program:
        done = environment.call("-c", job.program)
        assert done.returncode == 1, done.stdout
        return [done.stderr.splitlines()[-1]]
    given = answers(environment, [line.split() for line in job.lines])
    for line, (code, out, err) in zip(job.lines, given, strict=True):
        assert code == 2 and err.count("\n") == 1, f"{line}: {out}{err}"
    return [err for _, _, err in given]


def write_inputs(folder: Path) -> None:
    import numpy
    import pyarrow.csv
    import pyarrow.parquet
    from PIL import Image
    from safetensors.numpy import save_file

    (folder / "small.toml").write_text(SMALL)
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(folder / "hospitals.csv"), folder / "rows.parquet")
    numbers = numpy.arange(40, dtype=numpy.float32)
    save_file({"x": numbers.reshape(20, 2), "y": numbers[:20] % 2}, folder / "rows.safetensors")
    for number in range(16):
        place = folder / f"photos/site{number % 2}/day/kind{number // 2 % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number * 9, 40, 90)).save(place / f"{number}.png")
    (folder / "docs/notebooks").mkdir(parents=True)
    for name in ("_ext", "_static", "equations"):
        shutil.copytree(ROOT / "docs" / name, folder / "docs" / name)
    for name in ("conf.py", "reference.md", "notebooks/new_algorithm.ipynb"):
        shutil.copy(ROOT / "docs" / name, folder / "docs" / name)
    (folder / "docs/index.md").write_text(INDEX)
    (folder / "src").symlink_to(ROOT / "src")
