"""A full disk, an unwritable folder and damaged files: one sentence each, and nothing already saved is lost."""

import resource
import subprocess
from pathlib import Path

import pytest

from perinvfl.cli import call
from tests.commands import called, check_refusal, command, environment, tiny_file


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
    done = called("run", tiny_file(tmp_path), "--out", tmp_path / "runs")
    check_refusal(done.returncode, done.stdout, done.stderr, "cannot be written")
    assert (tmp_path / "runs").read_text() == "a file where the folder should be"


def test_a_damaged_checkpoint_is_one_sentence_and_stays(tmp_path: Path) -> None:
    file = tiny_file(tmp_path)
    assert called("run", file, "--out", tmp_path / "runs").returncode == 0
    (events,) = (tmp_path / "runs").rglob("events.jsonl")
    checkpoint = events.parent / "checkpoint.pt"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join(lines[:-1]))  # not finished any more
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    checkpoint.write_bytes(content)
    kept = events.read_bytes(), checkpoint.read_bytes()
    done = called("run", file, "--out", tmp_path / "runs")
    check_refusal(done.returncode, done.stdout, done.stderr, "is damaged")
    assert (events.read_bytes(), checkpoint.read_bytes()) == kept


def test_records_that_were_damaged_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", str(tiny_file(tmp_path)), "--out", str(tmp_path / "runs")]
    assert call(arguments) == 0
    (events,) = (tmp_path / "runs").rglob("events.jsonl")
    whole = events.read_bytes()
    events.unlink()
    capsys.readouterr()
    check_refusal(call(arguments), *capsys.readouterr(), "is missing, and other files of its run are there")
    events.write_bytes(b"\xff\xfe" + whole)
    check_refusal(call(arguments), *capsys.readouterr(), "line 1 is not a record")
