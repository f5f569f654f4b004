"""Every mistake that a user can make is answered by one sentence and exit code 2."""

from pathlib import Path

import pytest
import torch

from perinvfl.cli import call
from tests.commands import called, check_refusal, tiny_file

MISTAKES = {
    "unknown section": (["trainning.rounds=3"], "trainning is not a setting; did you mean training?"),
    "unknown key": (["training.round=3"], "training.round is not a setting; did you mean rounds?"),
    "unknown algorithm key": (["algorithm.perinvfl.gamma=3"], "algorithm[0].gamma is not a setting"),
    "wrong type": (['training.rounds="many"'], 'training.rounds = "many": must be a whole number'),
    "a truth value is no number": (["training.rounds=true"], "training.rounds = True: must be a whole number"),
    "wrong choice": (["training.executor=fast"], 'training.executor = "fast": must be one of "auto", "vmap", "loop"'),
    "R below 1": (["algorithm.local_steps=0"], "algorithm[0].local_steps = 0: must be at least 1"),
    "no learning": (["algorithm.learning_rate=0"], "algorithm[0].learning_rate = 0.0: must be greater than 0"),
    "not finite": (["algorithm.learning_rate=nan"], "must be a finite number"),
    "fraction": (["training.fraction=1.5"], "training.fraction = 1.5: must be at most 1"),
    "must diverge": (
        ["algorithm.beta=100.0", "algorithm.warmup_rounds=3"],
        "beta can be at most 20 with that step size",
    ),
    "no step left": (
        ["algorithm.perinvfl.cooling=3", "algorithm.perinvfl.personal_after=3"],
        "algorithm[0].cooling = 3 leaves the personal model no step: it must be more than personal_after = 3",
    ),
    "per-client list": (["algorithm.beta=[0.1, 0.2]"], "beta lists 2 values for 3 clients"),
    "p outside": (
        ["data.benchmark=rc_mnist", "data.p_train=[0.9, 1.2]"],
        "data.p_train = [0.9, 1.2]: must be at most 1",
    ),
    "too many images": (
        ["data.benchmark=rc_mnist", "data.train_per_client=20000"],
        "4 clients would take 80000 of 50000 images; at most 12500 each would fit",
    ),
    "rotation": (["data.benchmark=rc_mnist", "data.rotations=[45]"], "must be multiples of 90"),
    "missing data": (
        ["data.benchmark=rc_mnist", "data.data_root=nowhere", "data.train_per_client=10"],
        "nowhere",
    ),
    "benchmark": (["data.benchmark=rcmnist"], 'data.benchmark = "rcmnist" is not known; did you mean rc_mnist?'),
    "seed": (["seeds=[0, 0]"], "each seed may be named once"),
    "set without a name": (["=3"], "write it as key=value"),
    "set without value": (["training.rounds"], "write it as key=value"),
    "batch of one": (["training.batch_size=1"], "compares two halves of a batch; at least 2"),
    "batch too large": (["training.batch_size=999999999"], "no client has as many samples"),
    "name": (["name=../elsewhere"], "must be a word that can name a folder"),
    "benchmark of a wrong type": (["data.benchmark=[1]"], "is not known"),
    "no GPU": (["training.device=cuda"], "no CUDA device is available here"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "no GPU" and torch.cuda.is_available():
        return  # then it is no mistake
    settings, sentence = MISTAKES[name]
    options = [part for setting in settings for part in ("--set", setting)]
    code = call(["run", str(tiny_file(tmp_path)), "--out", str(tmp_path / "runs"), *options])
    check_refusal(code, *capsys.readouterr(), sentence)
    assert not list((tmp_path / "runs").rglob("*.jsonl")), "nothing may be written for a run that cannot start"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "does not exist"),
        ("seeds = [", "is not a TOML file"),
        ('[data]\nbenchmark = "random"', "algorithm is missing"),
        ('algorithm = "fedavg"\n[data]\nbenchmark = "random"', "write [[algorithm]]"),
        ('[[algorithm]]\nname = "fedavg"', "data.benchmark is missing"),
        ('[data]\nbenchmark = "random"\n[[algorithm]]\nname = "fedavgg"', "did you mean fedavg?"),
        ('data.benchmark = "random"\n[[algorithm]]\nname = "alone"\nserver_learning_rate = 1', "means nothing"),
        ('data.benchmark = "random"\n' + 2 * '[[algorithm]]\nname = "irm"\n', 'Two algorithms are called "IRM"'),
        ('data.benchmark = "random"\n[[algorithm]]\nname = "irm"\n[[algorithm]]\nname = "fedbn"', "FedBN keeps the"),
        ('data.benchmark = "random"\nmodel.hidden = []\n[[algorithm]]\nname = "fedrep"', "this model has one layer"),
        (
            'data.benchmark = "random"\nmodel.kind = "linear"\nalgorithm = [{name="perinvfl", personal_part="head"}]',
            "PerInvFL keeps a part of the model at each client",
        ),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_sentence(
    content: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.toml"
    if content is not None:
        file.write_text(content)
    code = call(["run", str(file), "--out", str(tmp_path / "runs")])
    check_refusal(code, *capsys.readouterr(), sentence)


def test_a_mistake_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = called("run", tiny_file(tmp_path), "--set", "training.round=3")
    check_refusal(done.returncode, done.stdout, done.stderr, "did you mean rounds?")


def test_unknown_command_or_option_is_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tiny_file(tmp_path))
    for arguments in (
        ["rum"],
        ["run", file, "--ouut", "x"],
        ["sweep", file],
        ["sweep", file, "--trials", "0"],
    ):
        assert call(arguments) == 2
        assert "Error" in capsys.readouterr().err


def test_run_takes_a_file_or_a_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tiny_file(tmp_path))
    for arguments in (["run"], ["run", file, "--preset", "perinvfl-rc_mnist"]):
        assert call(arguments) == 2
        assert "one of FILE and --preset NAME" in capsys.readouterr().err
    assert call(["run", "--preset", "perinvf-rc_mnist"]) == 2
    assert "did you mean perinvfl-rc_mnist?" in capsys.readouterr().err


def test_a_table_of_data_is_no_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my data.csv").write_text("age,ill\n61,yes\n")
    code = call(["run", str(tmp_path / "my data.csv")])
    check_refusal(code, *capsys.readouterr(), "my data.csv'` writes an experiment file for it")


def test_the_folder_here_is_not_the_folder_of_published_tables(tmp_path: Path) -> None:
    done = called("table", ".", cwd=tmp_path)
    check_refusal(done.returncode, done.stdout, done.stderr, "There is no finished run here")


def test_a_table_of_nothing(tmp_path: Path) -> None:
    done = called("table", tmp_path / "nowhere")
    check_refusal(done.returncode, done.stdout, done.stderr, "is not a folder")
    done = called("table", tmp_path)
    check_refusal(done.returncode, done.stdout, done.stderr, "no finished run")
