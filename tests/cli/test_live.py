"""Work under way, as people and programs see it: real processes, real terminals, real trackers, a real Ctrl-C."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perinvfl.cli import call
from perinvfl.core.extras import how_to_install
from tests.commands import command, environment, perinvfl, start, tiny_file, until, untimed

SECOND = '\n[[algorithm]]\nname = "fedavg"\nlearning_rate = 0.1\n'


def stopped(file: Path, out: Path, *options: str, at: int = 2) -> tuple[int, str]:
    """Begin a run that gets Ctrl-C at its n-th evaluation; exit code and stderr."""
    path = os.pathsep.join([str(Path(__file__).parent / "interrupted"), os.environ.get("PYTHONPATH", "")])
    process = start("run", file, "--out", out, *options, PYTHONPATH=path.rstrip(os.pathsep), INTERRUPT_AT=str(at))
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def test_ctrl_c_prints_the_exact_command_that_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"  # a name that must be quoted
    folder.mkdir()
    file = tiny_file(folder, rounds=12, training="evaluate_every = 4")
    code, err = stopped(file, folder / "runs")
    assert code == 130 and "Traceback" not in err
    said, resume = err.strip().splitlines()
    assert said == "Stopped. The same command resumes from the last checkpoint:"
    assert shlex.split(resume) == [sys.executable, "-m", "perinvfl", "run", str(file), "--out", str(folder / "runs")]
    again = subprocess.run(resume, shell=True, capture_output=True, text=True, env=environment())
    assert again.returncode == 0, again.stderr
    assert "resumes after round" in again.stdout
    assert call(["run", str(file), "--out", str(folder / "whole"), "--quiet"]) == 0
    (resumed,), (whole,) = ((list((folder / name).rglob("events.jsonl"))) for name in ("runs", "whole"))
    assert untimed(resumed) == untimed(whole), "stopped and resumed, the same result"


def test_ctrl_c_elsewhere_names_its_own_command(tmp_path: Path) -> None:
    file = tiny_file(tmp_path, rounds=100_000)
    process = start(file, "--out", tmp_path / "runs", module="perinvfl.train")
    until(lambda: list((tmp_path / "runs").rglob("checkpoint.pt")), "the first checkpoint", process)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert shlex.split(err.strip().splitlines()[-1])[1:4] == ["-m", "perinvfl.train", str(file)]


Printed = pytest.CaptureFixture[str]


def test_json_lines_tell_everything(tmp_path: Path, capsys: Printed) -> None:
    line = ["run", str(tiny_file(tmp_path, more=SECOND)), "--json", "--out", str(tmp_path / "runs")]
    assert call(line) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    lines = [line for line in said if line["event"] != "remark"]  # ten rounds may have taught nothing
    assert [line["event"] for line in lines] == ["start", "evaluation", "evaluation", "end"] * 2 + ["done"]
    assert lines[0]["rounds"] == 10 and Path(lines[0]["folder"]).is_dir()
    assert lines[1]["seconds_left"] >= 0 and lines[2]["seconds_left"] == 0
    recorded = [json.loads(line) for line in (Path(lines[0]["folder"]) / "events.jsonl").read_text().splitlines()]
    assert lines[2]["personal"] == recorded[2]["personal"] and lines[2]["risks"] == recorded[2]["risks"]
    assert [row["method"] for row in lines[-1]["table"]["rows"]] == ["Constant", "PerInvFL", "FedAvg"]
    assert call(line) == 0
    again = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["event"] for line in again] == ["skipped", "skipped", "done"]


def test_quiet_says_nothing_but_errors(tmp_path: Path, capsys: Printed) -> None:
    done = perinvfl("run", tiny_file(tmp_path), "--quiet", "--out", tmp_path / "runs")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list((tmp_path / "runs").rglob("checkpoint.pt"))
    assert call(["run", str(tmp_path / "none.toml"), "--quiet"]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert call(["run", str(tiny_file(tmp_path)), "--quiet", "--json"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_a_log_tells_rounds_risk_and_time_left(tmp_path: Path, capsys: Printed) -> None:
    assert call(["run", str(tiny_file(tmp_path)), "--out", str(tmp_path / "runs")]) == 0
    first = next(line for line in capsys.readouterr().out.splitlines() if "round 5" in line)
    for word in ("PerInvFL, seed 0: round 5 of 10", "risk 0.", "test accuracy ", "s left"):
        assert word in first


def test_a_terminal_shows_bars_with_rounds_risk_and_time(tmp_path: Path) -> None:
    file = tiny_file(tmp_path, rounds=60, more=SECOND)
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
    for word in ("PerInvFL, seed 0", "all 2 runs", "60/60", "120/120", "risk 0.", "test accuracy ", "0:00:0"):
        assert word in text, word


def test_tensorboard_gets_the_recorded_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )

    assert call(["run", str(tiny_file(tmp_path)), "--track", "tensorboard", "--out", str(tmp_path / "runs")]) == 0
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


def test_mlflow_gets_the_recorded_numbers_and_resumes_a_run(tmp_path: Path) -> None:
    file = tiny_file(tmp_path, rounds=12, training="evaluate_every = 4")
    code, err = stopped(file, tmp_path / "runs", "--track", "mlflow")
    assert code == 130, err
    line = [sys.executable, "-c", RESUME_AND_READ, str(tmp_path / "runs/tiny/mlflow.db"), "run", str(file), "--quiet"]
    line += ["--out", str(tmp_path / "runs"), "--track", "mlflow"]
    again = subprocess.run(line, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    (events,) = (tmp_path / "runs").rglob("events.jsonl")
    recorded = [json.loads(line) for line in events.read_text().splitlines() if '"evaluation"' in line]
    (found,) = json.loads(again.stdout)
    assert found["status"] == "FINISHED" and found["beta"] == "0.5"
    assert found["curve"] == {
        str(event["round"]): pytest.approx(sum(event["personal"]["0.1"]) / 3, abs=1e-6) for event in recorded
    }


RESUME_AND_READ = """
import json, os, sys
from perinvfl.cli import call
assert call(sys.argv[2:]) == 0
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
import json
for line in json.loads(sys.argv[1]):
    print(call(line))
    print("then", file=sys.stderr)
"""


def test_without_an_extra_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    file, out = str(tiny_file(tmp_path)), str(tmp_path / "runs")
    assert call(["run", file, "--quiet", "--out", out]) == 0
    run = str(next((tmp_path / "runs").rglob("events.jsonl")).parent)
    sinks = [["run", file, "--track", sink, "--out", f"{out}-{sink}"] for sink in ("mlflow", "tensorboard")]
    forms = [["export", run, "--client", "1", "--format", form] for form in ("safetensors", "onnx")]
    line = [sys.executable, "-c", BLOCK, json.dumps(sinks + forms)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.stdout.split() == ["2"] * 4, done.stdout + done.stderr
    *said, rest = done.stderr.split("then\n")
    assert rest == "" and len(said) == 4
    for sentence, extra in zip(said, ("track", "track", "export", "export"), strict=True):
        assert how_to_install(extra) in sentence and sentence.count("\n") == 1
