"""The command line end to end, and every mistake it must answer with one sentence and exit code 2."""

import csv
import io
import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from commands import command, environment, perinvfl, start, tiny_file, untimed

from perinvfl.cli import call
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.presets import preset_file, preset_line, preset_names

SECOND = """
[[algorithm]]
name = "fedavg"
learning_rate = 0.1
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished experiment of two algorithms and two seeds, and what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    file = tiny_file(folder, more=SECOND)
    done = perinvfl("run", file, "--set", "seeds=[0, 1]", "--out", folder / "runs")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_run_ends_with_a_table_and_leaves_records(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    for word in ("Constant", "PerInvFL", "FedAvg", "Average", "Worst client", "Records:"):
        assert word in printed
    runs = [path for path in (folder / "runs" / "tiny").iterdir() if path.is_dir()]
    assert len(runs) == 4
    events = [json.loads(line) for line in (runs[0] / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "evaluation", "evaluation", "end"]
    start = events[0]
    assert start["id"] in runs[0].name
    assert {"asked", "environment", "notes", "spectrum"} <= set(start)
    assert start["environment"]["torch"]
    assert {"data", "model", "training", "algorithm", "seed"} == set(start["asked"])
    assert len(events[-2]["global"]["0.1"]) == start["clients"]


def test_asking_again_does_nothing_and_says_so(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*") if path.is_file()}
    again = perinvfl("run", folder / "tiny.toml", "--set", "seeds=[0, 1]", "--out", folder / "runs")
    assert again.returncode == 0
    assert again.stdout.count("already done, nothing to do") == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_another_setting_is_another_run(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    other = perinvfl(
        "run", folder / "tiny.toml", "--out", folder / "other", "--set", "algorithm.perinvfl.beta=0.25",
        "--set", "training.rounds=3",
    )  # fmt: skip
    assert other.returncode == 0, other.stderr
    here = {path.name for path in (folder / "runs/tiny").iterdir()}
    assert not here & {path.name for path in (folder / "other/tiny").iterdir()}
    recorded = next((folder / "other/tiny").glob("perinvfl-*/events.jsonl")).read_text().splitlines()[0]
    assert json.loads(recorded)["asked"]["algorithm"]["beta"] == 0.25
    assert json.loads(recorded)["asked"]["training"]["rounds"] == 3


def test_table_formats_agree(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    shown = {form: perinvfl("table", folder / "runs/tiny", "--format", form) for form in ("md", "csv", "latex", "json")}
    assert all(done.returncode == 0 for done in shown.values())
    table = json.loads(shown["json"].stdout)
    assert (table["benchmark"], table["rule"], table["seeds"]) == ("random", "last round", 2)
    assert [row["method"] for row in table["rows"]] == ["Constant", "PerInvFL", "FedAvg"]
    row = table["rows"][1]
    assert set(row["cases"]) == {"0.1", "0.5"}
    means = [case["mean"] for case in row["cases"].values()]
    assert row["average"] == pytest.approx(sum(means) / 2)
    assert row["worst"] == min(means)
    lines = list(csv.reader(io.StringIO(shown["csv"].stdout)))
    assert lines[2][0] == "PerInvFL" and lines[2][3].startswith(f"{row['average']:.2f}")
    assert f"{row['average']:.2f}" in shown["md"].stdout and f"{row['average']:.2f}" in shown["latex"].stdout
    assert shown["latex"].stdout.startswith(r"\begin{tabular}")


def test_table_trains_nothing(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    before = sorted(path.stat().st_mtime_ns for path in (folder / "runs").rglob("*"))
    assert perinvfl("table", folder / "runs/tiny").returncode == 0
    assert sorted(path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")) == before


def test_list_shows_every_setting() -> None:
    printed = perinvfl("list")
    assert printed.returncode == 0
    for word in (
        "perinvfl",
        "pfedme",
        "irm_ft",
        "alone",
        "rc_mnist",
        "structural",
        "β",
        "λ",
        "0.01 to 100000, log",
        "[model]",
    ):
        assert word in printed.stdout
    assert "beta" in printed.stdout and "p_train" in printed.stdout and "batch_size" in printed.stdout


def test_sweep_draws_within_the_ranges_and_holds_what_the_file_names(tmp_path: Path) -> None:
    done = perinvfl("sweep", tiny_file(tmp_path, rounds=3), "--trials", 4, "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    starts = [json.loads(path.read_text().splitlines()[0]) for path in (tmp_path / "runs").rglob("events.jsonl")]
    drawn = [start["asked"]["algorithm"] for start in starts]
    assert len(drawn) == 4
    assert {setting["beta"] for setting in drawn} == {0.5}  # named in the file
    assert len({setting["l2"] for setting in drawn}) == 4
    assert all(1e-5 <= setting["l2"] <= 3e-3 for setting in drawn)


def test_the_core_command_does_the_same(tmp_path: Path) -> None:
    file = tiny_file(tmp_path)
    core = perinvfl(file, "--out", tmp_path / "core", module="perinvfl.runs.train")
    full = perinvfl("run", file, "--out", tmp_path / "full")
    assert core.returncode == full.returncode == 0, core.stderr + full.stderr
    (one,), (other,) = (list((tmp_path / name).rglob("events.jsonl")) for name in ("core", "full"))
    assert one.parent.name == other.parent.name
    assert untimed(one) == untimed(other)


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
        "data.p_train = (0.9, 1.2): must be at most 1",
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
    "set without value": (["training.rounds"], "write it as key=value"),
    "batch of one": (["training.batch_size=1"], "compares two halves of a batch; at least 2"),
    "batch too large": (["training.batch_size=999999999999"], "no client has more than"),
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


def check_refusal(code: int, out: str, err: str, sentence: str) -> None:
    assert code == 2, out + err
    assert sentence in err
    assert err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "does not exist"),
        ("seeds = [", "is not a TOML file"),
        ('[data]\nbenchmark = "random"', "algorithm is missing"),
        ('[[algorithm]]\nname = "fedavg"', "data.benchmark is missing"),
        ('[data]\nbenchmark = "random"\n[[algorithm]]\nname = "fedavgg"', "did you mean fedavg?"),
        ('data.benchmark = "random"\n[[algorithm]]\nname = "alone"\nserver_learning_rate = 1', "means nothing"),
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
    done = perinvfl("run", tiny_file(tmp_path), "--set", "training.round=3")
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


def test_every_preset_is_a_sound_experiment() -> None:
    for name in preset_names():
        experiment = read_experiment(preset_file(name))
        assert experiment.name == name and len(experiment.trials) == 1 and preset_line(name)


def test_a_table_of_nothing(tmp_path: Path) -> None:
    done = perinvfl("table", tmp_path / "nowhere")
    check_refusal(done.returncode, done.stdout, done.stderr, "is not a folder")
    done = perinvfl("table", tmp_path)
    check_refusal(done.returncode, done.stdout, done.stderr, "no finished run")


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    """On a real file system of 64 kB where one may be mounted; elsewhere under a limit on the size of a file."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", small], capture_output=True)
    limit = None if mounted.returncode == 0 else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        done = subprocess.run(
            command("run", tiny_file(tmp_path, rounds=2000, training="evaluate_every = 1").rename(tmp_path / "x.toml"),
                    "--out", small),
            capture_output=True, text=True, env=environment(), preexec_fn=limit,
        )  # fmt: skip
        left = next(small.rglob("events.jsonl")).read_bytes()
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", small], check=True)
    reason = "No space left on device" if mounted.returncode == 0 else "File too large"
    check_refusal(done.returncode, done.stdout, done.stderr, reason)
    assert "cannot be written" in done.stderr
    assert left.startswith(b'{"event":"start"')


def test_an_unwritable_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    done = perinvfl("run", tiny_file(tmp_path), "--out", tmp_path / "runs")
    check_refusal(done.returncode, done.stdout, done.stderr, "cannot be written")
    assert (tmp_path / "runs").read_text() == "a file where the folder should be"


def test_a_damaged_checkpoint_is_one_sentence_and_stays(tmp_path: Path) -> None:
    file = tiny_file(tmp_path)
    assert perinvfl("run", file, "--out", tmp_path / "runs").returncode == 0
    (events,) = (tmp_path / "runs").rglob("events.jsonl")
    checkpoint = events.parent / "checkpoint.pt"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join(lines[:-1]))  # not finished any more
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    checkpoint.write_bytes(content)
    kept = events.read_bytes(), checkpoint.read_bytes()
    done = perinvfl("run", file, "--out", tmp_path / "runs")
    check_refusal(done.returncode, done.stdout, done.stderr, "is damaged")
    assert (events.read_bytes(), checkpoint.read_bytes()) == kept


def test_a_run_that_becomes_nan_stops_alone(tmp_path: Path) -> None:
    more = '\n[[algorithm]]\nname = "fedavg"\nlabel = "Too fast"\nlearning_rate = 1e30\nlocal_steps = 3\n' + SECOND
    done = perinvfl("run", tiny_file(tmp_path, more=more), "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert "Too fast, seed 0: no longer finite after round" in done.stdout
    assert "learning_rate = 1e+30" in done.stdout
    table = json.loads(perinvfl("table", tmp_path / "runs/tiny", "--format", "json").stdout)
    assert [row["method"] for row in table["rows"]] == ["Constant", "PerInvFL", "FedAvg"]
    again = perinvfl("run", tmp_path / "tiny.toml", "--out", tmp_path / "runs")
    assert again.stdout.count("already done") == 3


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    file = tiny_file(tmp_path, rounds=100_000)
    process = start("run", file, "--out", tmp_path / "runs")
    while not list((tmp_path / "runs").rglob("checkpoint.pt")):
        time.sleep(0.05)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "The same command goes on from the last checkpoint" in err and "Traceback" not in err


def test_two_settings_of_one_label_are_two_rows(tmp_path: Path) -> None:
    file = tiny_file(tmp_path)
    for rounds in (10, 5):
        assert call(["run", str(file), "--out", str(tmp_path / "runs"), "--set", f"training.rounds={rounds}"]) == 0
    table = json.loads(perinvfl("table", tmp_path / "runs/tiny", "--format", "json").stdout)
    methods = sorted(row["method"] for row in table["rows"] if row["kind"] == "measured")
    assert methods == ["PerInvFL (training.rounds = 10)", "PerInvFL (training.rounds = 5)"]
    assert table["seeds"] == 1
    other = call(["run", str(file), "--quiet", "--out", str(tmp_path / "runs"), "--set", "algorithm.local_steps=3"])
    latex = perinvfl("table", tmp_path / "runs/tiny", "--format", "latex").stdout
    assert other == 0 and r"algorithm.local\_steps = 3" in latex and "local_steps" not in latex


def test_records_that_were_damaged_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", str(tiny_file(tmp_path)), "--out", str(tmp_path / "runs")]
    assert call(arguments) == 0
    (events,) = (tmp_path / "runs").rglob("events.jsonl")
    whole = events.read_bytes()
    events.unlink()
    capsys.readouterr()
    check_refusal(call(arguments), *capsys.readouterr(), "is missing beside its checkpoint")
    events.write_bytes(b"\xff\xfe" + whole)
    check_refusal(call(arguments), *capsys.readouterr(), "is not text")
