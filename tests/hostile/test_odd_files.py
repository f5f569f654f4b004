"""Names of files that stand for something else: pipes and devices, which never end, are refused and not waited for."""

import json
import os
import shutil
from pathlib import Path

import pytest

from perinvfl.cli import call
from perinvfl.core.patience import within
from perinvfl.core.toml_text import TomlError, read_toml
from perinvfl.errors import UserError
from perinvfl.models.resnet import parameter_shapes, read_weights
from perinvfl.runs.event_log import EVENTS, FINISHED
from perinvfl.runs.experiment import read_experiment
from perinvfl.runs.facts import run_id
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import CHECKPOINT, TOGETHER
from perinvfl.runs.train import train
from tests.commands import tiny_file

SECONDS = 60  # in which a command that waits for nothing has long ended


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert within(SECONDS, lambda: call([str(part) for part in arguments])) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", ["data.csv", "data.parquet", "data.npz", "data.safetensors", "zero.csv"])
@pytest.mark.parametrize("command", ["data check", "audit"])
def test_data_that_never_end(command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    if name == "zero.csv":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    assert "It is a pipe or a device, no file." in refusal(capsys, *command.split(), path)


def test_weights_that_never_come(tmp_path: Path) -> None:
    for name in ("weights.pth", "weights.safetensors"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(UserError, match="It is a pipe or a device"):
            within(SECONDS, lambda name=name: read_weights(tmp_path / name, parameter_shapes(1, 1)))  # type: ignore[misc]


def test_folders_whose_names_are_not_utf_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else a run would be trained to its end, and leave a record that nobody can read."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    rows = [f"{'ab'[i % 2]},{i // 2 % 2},{i // 4 % 2},{i % 7}" for i in range(80)]
    (folder / "t.csv").write_text("\n".join(["client,context,label,age", *rows]))
    (folder / "e.toml").write_text(
        '[data]\nbenchmark = "file"\npath = "t.csv"\n[training]\nrounds = 2\n[[algorithm]]\nname = "fedavg"\n'
    )
    told = refusal(capsys, "run", folder / "e.toml", "--out", tmp_path / "runs")
    assert r"caf\udce9/t.csv" in told and "No record can hold" in told and not list(tmp_path.rglob(EVENTS))
    shutil.copy(folder / "t.csv", tmp_path / os.fsdecode(b"\xff.csv"))
    told = refusal(capsys, "init", tmp_path / os.fsdecode(b"\xff.csv"), "--out", tmp_path / "new.toml")
    assert "its name is not UTF-8 text" in told and not (tmp_path / "new.toml").exists()
    out = tmp_path / os.fsdecode(b"r\xe9sultats")
    shutil.copytree(folder, tmp_path / "plain")
    assert call(["run", str(tmp_path / "plain/e.toml"), "--out", str(out)]) == 0, "where the records lie is free"
    for command in (["table"], ["verify"], ["report", "-o", str(out / "r.html")]):
        assert call([command[0], str(out), *command[1:]]) == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (run,) = train(read_experiment(tiny_file(folder, 4)), folder / "runs", Progress())
    return run


@pytest.mark.parametrize("name", [EVENTS, CHECKPOINT, FINISHED])
def test_records_that_never_end(name: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / name).unlink()
    os.mkfifo(run / name)
    assert within(SECONDS, lambda: call(["verify", str(run)])) == 2
    assert "pipe or a device" in capsys.readouterr().out
    assert within(SECONDS, lambda: call(["table", str(run)])) == (2 if name == EVENTS else 0)


@pytest.mark.parametrize("content", [b"", b"3", b'{"lines": 1, "check": "x"}', b"[" * 100_000, b"\xff"])
def test_verify_reads_the_mark_of_the_end_too(
    content: bytes, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    assert call(["verify", str(run)]) == 0
    (run / FINISHED).write_bytes(content)
    assert call(["verify", str(run)]) == 2 and "does not fit the last line" in capsys.readouterr().out
    shutil.copy(finished / FINISHED, run)
    with open(run / EVENTS, "a") as file:
        file.write((run / EVENTS).read_text().splitlines()[-1] + "\n")
    assert call(["verify", str(run)]) == 2, "a line behind the end"


def test_a_byte_order_mark_and_a_file_without_end(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_toml(tmp_path / "a.toml") == {"a": 1}
    with pytest.raises(TomlError, match="it is larger than 16 MiB"):
        within(SECONDS, lambda: read_toml(Path("/dev/zero")))


@pytest.mark.parametrize("ids", [[["a"]], {"a": 1}, "a", 3, None])
def test_members_of_a_group_that_are_no_runs(ids: object, tmp_path: Path) -> None:
    experiment, folder = read_experiment(tiny_file(tmp_path, 4)), tmp_path / "runs" / TOGETHER
    folder.mkdir(parents=True)
    (folder / f"{run_id({'trials': ids})}.json").write_text(json.dumps(ids))
    with pytest.raises(UserError, match="is damaged; delete it"):
        train(experiment, tmp_path / "runs", Progress())
