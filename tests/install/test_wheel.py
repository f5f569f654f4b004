"""The package as users install it: the built wheel, in an environment of its own, used from an empty folder."""

import site
import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest

import perinvfl
from perinvfl.results.finished import published_names
from tests.commands import ROOT
from tests.install.environments import (
    Environment,
    answers,
    build_wheel,
    empty_environment,
    link,
    pip,
    pythons,
    required,
)

MOST_BYTES = 12_500_000  # 10 of them are the digits and garments, 1 the records of the worlds
SMALL = [f"--set={setting}" for setting in ("training.rounds=1", "training.batch_size=0", "data.train_per_client=100")]
SMALL.append("--set=data.test_per_client=40")
COMPILED = ("torch", "numpy")  # what is made for one Python alone


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel, and with the libraries of this one; its programs are called in an empty folder."""
    folder, here = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("empty")
    made = empty_environment(folder, here, map(Path, site.getsitepackages()))
    pip("--python", made.python, "install", "--no-deps", "--no-index", wheel)
    return made


def printed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_in_the_wheel(wheel: Path) -> None:
    assert wheel.name == f"perinvfl-{perinvfl.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < MOST_BYTES
    names = ZipFile(wheel).namelist()
    folders = {name.partition("/")[0] for name in names}
    assert folders == {"perinvfl", f"perinvfl-{perinvfl.__version__}.dist-info"}
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert {path.removeprefix("src/") for path in tracked} <= set(names)


def test_it_is_the_wheel_that_answers(installed: Environment) -> None:
    code = "import perinvfl; print(perinvfl.__file__, perinvfl.__version__)"
    file, version = printed(installed.call("-c", code)).split()
    assert "site-packages/perinvfl" in file and str(ROOT) not in file
    assert version == printed(installed.call("--version", program="perinvfl")).strip() == perinvfl.__version__


def test_every_published_table_is_shown(installed: Environment) -> None:
    options = (
        ["beyond/rc_mnist", "--rule", "oracle"],
        ["waterbird", "--score", "worst-group"],
        ["rc_mnist", "--format", "json"],
        ["worlds", "--full"],
        ["heart_disease", "--score", "auroc", "--method", "FedAvg"],
    )
    lines = [["table", *words] for words in (*([name] for name in published_names()), *options)]
    for line, (code, out, err) in zip(lines, answers(installed, lines), strict=True):
        assert (code, err) == (0, ""), (line, err)
        assert len(out.splitlines()) > 5, line


REFUSED = {
    "table nosuch": "nosuch is not a folder, nor a published table; those are ablation, beyond",
    "table beyond --rule nosuch": "is not known; rules are",
    "table beyond --rule leave-one-client-out": "hold nothing that it looks at; try",
    "table rc_mnist --score balanced": "the table rc_mnist has accuracy",
    "table rc_mnist --score auroc": "holds no predictions; it has accuracy",
    "table rc_mnist --method IRM": "does not apply to rc_mnist",
    "plot rc_mnist": "give their folder, which is results/rc_mnist",
    "report rc_mnist": "give their folder, which is results/rc_mnist",
}


def test_what_a_finished_table_cannot_show_is_said_in_one_sentence(installed: Environment) -> None:
    given = answers(installed, [line.split() for line in REFUSED])
    for (line, said), (code, _, err) in zip(REFUSED.items(), given, strict=True):
        assert code == 2 and said in err and err.count("\n") == 1, (line, err)


def test_the_demo_runs(installed: Environment) -> None:
    text = printed(installed.call("demo", *SMALL, program="perinvfl"))
    assert "Recommended" in text and "PerInvFL, paper" in text and text.endswith("Records: runs/demo\n")


def test_presets_and_own_data_run(installed: Environment) -> None:
    short = ["--set", "training.rounds=2", "--set", "seeds=[0]"]
    demo, preset, data, init, run, table = answers(
        installed,
        [
            ["list", "demo"],
            ["run", "--preset", "perinvfl-rc_mnist", *SMALL, "--set", "data.holdout=20"],
            ["data", "heart_disease"],
            ["init", "hospitals.csv"],
            ["run", "hospitals.toml", *short, "--quiet"],
            ["table", "runs/hospitals"],
        ],
    )
    assert demo == (0, (ROOT / "experiments/demo.toml").read_text(encoding="utf-8"), "")
    assert preset[0] == 0 and preset[1].endswith("Records: runs/perinvfl-rc_mnist\n")
    assert data == (0, "hospitals.csv: 920 patients of 4 hospitals\n", "")
    assert init[0] == 0 and "Next: perinvfl run hospitals.toml" in init[1]
    assert run == (0, "", "") and "Recommended" in table[1]


def test_the_python_example_of_the_readme_runs(installed: Environment) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = text.partition("```python\n")[2].partition("```")[0]
    assert "import perinvfl as pf" in example and "pf.start" in example
    assert len(printed(installed.call("-W", "error", "-c", example)).splitlines()) >= 2


@pytest.mark.parametrize("python", pythons())
def test_every_python_at_hand_reads_tables(python: str, wheel: Path, tmp_path: Path) -> None:
    """With the libraries that are written in Python; `make installs` takes them all, PyTorch among them."""
    (tmp_path / "here").mkdir()
    made = empty_environment(tmp_path / "environment", tmp_path / "here", python=pythons()[python])
    pip("--python", made.python, "install", "--no-deps", "--no-index", wheel)
    link((found for name, found in required(wheel).items() if name not in COMPILED), made.packages)
    assert printed(made.call("--version")).startswith(f"Python {python.removeprefix('python')}.")
    printed(made.call("-W", "error", "-m", "compileall", "-q", made.packages / "perinvfl"))
    lines = (["--help"], ["list"], ["list", "fedavg"], ["table", "beyond"], ["table", "worlds"])
    for line, (code, out, err) in zip(lines, answers(made, lines), strict=True):
        assert (code, err) == (0, "") and len(out.splitlines()) > 5, (line, err)
