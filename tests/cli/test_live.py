"""Work under way, as people and programs see it: real processes, real terminals, real trackers, a real Ctrl-C."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import command, environment, perinvfl, start, tiny_file, untimed

from perinvfl.cli import call

SECOND = '\n[[algorithm]]\nname = "fedavg"\nlearning_rate = 0.1\n'


def start_and_stop(file: Path, out: Path, *options: str) -> tuple[int, str, str]:
    """Begin a long run, press Ctrl-C once there is something to go on from; exit code, stdout, stderr."""
    process = start("run", file, "--out", out, *options)
    while not list(out.rglob("checkpoint.pt")):
        time.sleep(0.05)
        assert process.poll() is None
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGINT)
    told, err = process.communicate(timeout=60)
    return process.returncode, told, err


def test_ctrl_c_tells_the_exact_command_and_it_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"  # a name that must be quoted
    folder.mkdir()
    file = tiny_file(folder, rounds=300, training="evaluate_every = 50")
    code, _, err = start_and_stop(file, folder / "runs")
    assert code == 130 and "Traceback" not in err
    said, resume = err.strip().splitlines()
    assert said == "Stopped. The same command goes on from the last checkpoint:"
    assert shlex.split(resume) == [sys.executable, "-m", "perinvfl", "run", str(file), "--out", str(folder / "runs")]
    again = subprocess.run(resume, shell=True, capture_output=True, text=True, env=environment())
    assert again.returncode == 0, again.stderr
    assert "going on after round" in again.stdout
    assert perinvfl("run", file, "--out", folder / "whole").returncode == 0
    (stopped,), (whole,) = ((list((folder / name).rglob("events.jsonl"))) for name in ("runs", "whole"))
    assert untimed(stopped) == untimed(whole), "stopped and resumed, the same result"


def test_ctrl_c_elsewhere_names_its_own_command(tmp_path: Path) -> None:
    file = tiny_file(tmp_path, rounds=100_000)
    process = start(file, "--out", tmp_path / "runs", module="perinvfl.runs.train")
    while not list((tmp_path / "runs").rglob("checkpoint.pt")):
        time.sleep(0.05)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert shlex.split(err.strip().splitlines()[-1])[1:4] == ["-m", "perinvfl.runs.train", str(file)]


def test_json_lines_tell_everything(tmp_path: Path) -> None:
    file = tiny_file(tmp_path, more=SECOND)
    done = perinvfl("run", file, "--json", "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["event"] for line in told] == ["start", "evaluation", "evaluation", "end"] * 2 + ["done"]
    assert told[0]["rounds"] == 10 and Path(told[0]["folder"]).is_dir()
    assert told[1]["seconds_left"] >= 0 and told[2]["seconds_left"] == 0
    recorded = [json.loads(line) for line in (Path(told[0]["folder"]) / "events.jsonl").read_text().splitlines()]
    assert told[2]["personal"] == recorded[2]["personal"] and told[2]["risks"] == recorded[2]["risks"]
    assert [row["method"] for row in told[-1]["table"]["rows"]] == ["Constant", "PerInvFL", "FedAvg"]
    again = perinvfl("run", file, "--json", "--out", tmp_path / "runs")
    assert [json.loads(line)["event"] for line in again.stdout.splitlines()] == ["skipped", "skipped", "done"]


def test_quiet_says_nothing_but_errors(tmp_path: Path) -> None:
    done = perinvfl("run", tiny_file(tmp_path), "--quiet", "--out", tmp_path / "runs")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list((tmp_path / "runs").rglob("checkpoint.pt"))
    wrong = perinvfl("run", tmp_path / "none.toml", "--quiet")
    assert wrong.returncode == 2 and "does not exist" in wrong.stderr
    both = perinvfl("run", tiny_file(tmp_path), "--quiet", "--json")
    assert both.returncode == 2 and "exclude each other" in both.stderr


def test_a_log_tells_rounds_risk_and_time_left(tmp_path: Path) -> None:
    done = perinvfl("run", tiny_file(tmp_path), "--out", tmp_path / "runs")
    first = next(line for line in done.stdout.splitlines() if "round 5" in line)
    for word in ("PerInvFL, seed 0: round 5 of 10", "risk 0.", "mean over the spectrum", "s left"):
        assert word in first


def test_a_terminal_shows_bars_with_rounds_risk_and_time(tmp_path: Path) -> None:
    file = tiny_file(tmp_path, rounds=300, more=SECOND)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command("run", file, "--out", tmp_path / "runs"),
        stdout=follower, stderr=follower, env={**environment(), "TERM": "xterm", "COLUMNS": "140", "LINES": "40"},
    )  # fmt: skip
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait(timeout=60) == 0
    text = shown.decode(errors="replace")
    for word in ("PerInvFL, seed 0", "all 2 runs", "300/300", "600/600", "risk 0.", "shifted accuracy", "0:00:0"):
        assert word in text, word


def test_tensorboard_gets_the_recorded_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = perinvfl("run", tiny_file(tmp_path), "--track", "tensorboard", "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    (folder,) = (path.parent for path in (tmp_path / "runs").rglob("events.out.tfevents*"))
    assert folder.parent.name == "tensorboard"
    found = EventAccumulator(str(folder)).Reload()
    (events,) = (tmp_path / "runs").rglob("events.jsonl")
    recorded = [json.loads(line) for line in events.read_text().splitlines() if '"evaluation"' in line]
    curve = found.Scalars("personal/0.1")
    assert [point.step for point in curve] == [event["round"] for event in recorded] == [5, 10]
    for point, event in zip(curve, recorded, strict=True):
        assert point.value == pytest.approx(sum(event["personal"]["0.1"]) / 3, abs=1e-6)
    assert "risk" in found.Tags()["scalars"] and "global/0.5" in found.Tags()["scalars"]


def test_mlflow_gets_the_recorded_numbers_and_goes_on_with_a_run(tmp_path: Path) -> None:
    file = tiny_file(tmp_path, rounds=300, training="evaluate_every = 50")
    code, _, err = start_and_stop(file, tmp_path / "runs", "--track", "mlflow")
    assert code == 130, err
    again = perinvfl("run", file, "--out", tmp_path / "runs", "--track", "mlflow")
    assert again.returncode == 0, again.stderr
    (events,) = (tmp_path / "runs").rglob("events.jsonl")
    recorded = [json.loads(line) for line in events.read_text().splitlines() if '"evaluation"' in line]
    asked = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "runs/tiny/mlflow.db")], capture_output=True, text=True
    )
    assert asked.returncode == 0, asked.stderr
    (found,) = json.loads(asked.stdout)
    assert found["status"] == "FINISHED" and found["beta"] == "0.5"
    assert found["curve"] == {
        str(event["round"]): pytest.approx(sum(event["personal"]["0.1"]) / 3, abs=1e-6) for event in recorded
    }


READ = """
import json, os, sys
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
import mlflow
client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{sys.argv[1]}")
runs = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
print(json.dumps([{
    "status": run.info.status, "beta": run.data.params["algorithm.beta"],
    "curve": {point.step: point.value for point in client.get_metric_history(run.info.run_id, "personal/0.1")},
} for run in runs]))
"""


BLOCK = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"mlflow", "tensorboard", "safetensors", "onnx", "onnxscript"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
from perinvfl.cli import call
sys.exit(call(sys.argv[1:]))
"""


@pytest.mark.parametrize("sink", ["mlflow", "tensorboard"])
def test_without_the_extra_one_sentence_says_what_to_install(sink: str, tmp_path: Path) -> None:
    arguments = ["run", str(tiny_file(tmp_path)), "--track", sink, "--out", str(tmp_path / "runs")]
    done = subprocess.run([sys.executable, "-c", BLOCK, *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'perinvfl[track]'" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("form", ["safetensors", "onnx"])
def test_without_the_export_extra_likewise(form: str, tmp_path: Path) -> None:
    assert call(["run", str(tiny_file(tmp_path)), "--quiet", "--out", str(tmp_path / "runs")]) == 0
    run = next((tmp_path / "runs").rglob("events.jsonl")).parent
    arguments = ["export", str(run), "--client", "1", "--format", form]
    done = subprocess.run([sys.executable, "-c", BLOCK, *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'perinvfl[export]'" in done.stderr and done.stderr.count("\n") == 1
