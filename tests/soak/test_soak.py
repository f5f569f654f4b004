"""The first half minute of `make soak`, and that what grows is noticed."""

import json
import secrets
from pathlib import Path

import pytest

from tests.soak.__main__ import soak
from tests.soak.deployment import Wrong
from tests.soak.growth import ALLOWED, Growth


@pytest.mark.slow
def test_runs_with_random_faults_end_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # which the soak changes for its processes
    assert soak(tmp_path, seconds=6.0, seed="fixed", kinds=["plain", "private"]) == []


@pytest.mark.slow
def test_other_bits_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(
        "tests.soak.deployment.trace_of_deployment", lambda *_: json.dumps([secrets.token_hex(8), [], []])
    )
    with pytest.raises(Wrong, match=r"ended with other bits than .* \(the server's model\)"):
        soak(tmp_path, seconds=0.0, seed="fixed", kinds=["plain"])


@pytest.mark.parametrize("what", ALLOWED)
def test_what_grows_is_told_in_one_sentence(what: str) -> None:
    growth = Growth()
    for number in range(60):
        growth.note("the server", {what: 100 * ALLOWED[what] + number * ALLOWED[what] / 20})
        growth.note("site a", {what: ALLOWED[what] * (number % 2)})
    (told,) = growth.complaints()
    assert told.startswith(f"The {what} of the server grew from ") and told.count(".") >= 1
    growth.forget("the server")
    assert growth.complaints() == []
