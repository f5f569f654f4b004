"""Files whose checksums are right and whose content is not what this package writes: one sentence, or no harm."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch

from perinvfl.cli import call
from perinvfl.core import checkpoint
from perinvfl.core.sealed import FIRST, digest, read_about, read_sealed
from perinvfl.errors import UserError
from perinvfl.runs.experiment import Experiment, read_experiment
from perinvfl.runs.loaded import open_run
from perinvfl.runs.progress import Progress
from perinvfl.runs.records import CHECKPOINT, find_runs, read_run, tally_in
from perinvfl.runs.train import train
from tests.commands import tiny_file
from tests.stops import StopAt

HEADERS = [
    b"[" * 100_000,
    b"9" * 5000,
    b'"\xff"',
    b"3",
    b"[]",
    b"{}",
    b'{"content": 1}',
    b'{"content": "x", "records": []}',
    b'{"content": "x", "records": {"a": 3}}',
    b'{"content": "x", "records": {"a": {"lines": "many", "check": 1}}}',
    b'{"content": "x", "records": {"a": {"lines": 1, "check": "c", "more": 2}}}',
]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_headers_that_nobody_wrote(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    path.write_bytes(FIRST + digest(header).encode() + b"\n" + header + b"\n" + b"content")
    with pytest.raises(UserError, match="is damaged"):
        read_sealed(path, "checkpoint", "delete it")
    about, tally = read_about(path), tally_in(path, tmp_path)
    assert about is None or about["content"] == "x"
    assert tally is None or (tally.lines, tally.check) == (1, "c")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return read_experiment(tiny_file(tmp_path_factory.mktemp("file"), 4, "evaluate_every = 2"))


@pytest.fixture(scope="module")
def finished(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (folder,) = train(experiment, tmp_path_factory.mktemp("finished"), Progress())
    return folder


def spoilt(saved: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Tensors that no run has."""
    return {
        "none": {},
        "no seconds": {name: leaf for name, leaf in saved.items() if name != "seconds"},
        "numbers": {name: torch.zeros(()) for name in saved},
        "not finite": {name: leaf * float("nan") if leaf.is_floating_point() else leaf for name, leaf in saved.items()},
    }


@pytest.mark.parametrize("what", ["none", "no seconds", "numbers", "not finite"])
def test_checkpoints_of_other_tensors(what: str, experiment: Experiment, finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "run" / CHECKPOINT
    shutil.copytree(finished, path.parent)
    checkpoint.save(path, spoilt(checkpoint.load(path))[what])
    if what != "no seconds":  # which is not a part of the models
        with pytest.raises(UserError, match=r"does not fit|is of round"):
            open_run(path.parent)

    with pytest.raises(KeyboardInterrupt):
        train(experiment, tmp_path / "resumed", StopAt(2))
    (path,) = (tmp_path / "resumed").rglob(CHECKPOINT)
    checkpoint.save(path, spoilt(checkpoint.load(path))[what])
    try:  # what is not finite ends as any run does that diverges
        train(experiment, tmp_path / "resumed", Progress())
    except UserError as refused:
        assert "does not fit" in str(refused) or "damaged" in str(refused)


def test_what_a_killed_process_left_beside_a_finished_run_is_removed(
    experiment: Experiment, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished.parent, tmp_path / "out")
    (run,) = find_runs(tmp_path / "out")
    left = [run.folder / f".{name}.17.tmp" for name in ("finished.json", "predictions.json.gz")]
    for path in left:
        path.touch()
    train(experiment, tmp_path / "out", Progress())
    assert not any(path.exists() for path in left) and read_run(run.folder) is not None


def test_a_table_with_one_class_and_dates_that_nobody_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "\n".join(f"{'ab'[i % 2]},{2020 + i % 3},1,{i}" for i in range(40))
    (tmp_path / "one.csv").write_text(f"client,context,label,age\n{rows}\n")
    assert call(["data", "check", str(tmp_path / "one.csv")]) != 0
    assert "holds only one class" in capsys.readouterr().out
    whens = {"far": pyarrow.array([2**31 - 1] * 40, pyarrow.date32()),
             "mars": pyarrow.array(range(40), pyarrow.timestamp("us", tz="Mars/Olympus"))}  # fmt: skip
    for name, when in whens.items():
        columns = {"client": ["a", "b"] * 20, "context": when, "label": [0, 1] * 20, "age": list(range(40))}
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
        assert call(["data", "check", str(tmp_path / f"{name}.parquet")]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert 'column "context"' in said and "holds values that cannot be read; write them as text." in said
