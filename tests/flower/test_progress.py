"""What a person sees while a run across machines is under way."""

import io
from pathlib import Path

from perinvfl.runs.progress import Exchange, Lines, in_bytes
from perinvfl.terminal.console import PlainConsole
from perinvfl.terminal.live_deployment import LiveDeployment
from tests.flower.deployed import trial_of


def test_on_a_terminal() -> None:
    screen = io.StringIO()
    trial = trial_of("perinvfl", rounds=7)
    with LiveDeployment(PlainConsole(file=screen, force_terminal=True, width=140)) as live:
        live.waiting(["a"])
        live.started([trial], 3)
        live.preparing([trial], "reference", 1, 2)
        live.waiting(["b", "c"])
        live.heard(2, 4)
        live.round([trial], 4, 0.5, Exchange(3, 4, 1.25, 5_090_000, 1_272_004))
        live.left_out("d", 4, "no answer in time")
        live.evaluated([trial], 4, 0.75, "binary")
        live.evaluated([trial], 4, None, "binary")
        live.broke(trial, 4, "it broke")
        live.skipped(trial, Path("runs"))
        live.finished([trial], 9.0, "ε = 1 at δ = 1e-05 was spent on updates")
    shown = screen.getvalue()
    parts = ["PerInvFL, seed 0", "resumes after round 3", "3/4 replies", "risk 0.500", "1.2 s per round", "5.09 MB up"]
    parts += ["goes on without d: no answer in time", "it broke", "already done", "ε = 1", "4/7"]
    for part in parts:
        assert part in shown, part


def test_in_a_log() -> None:
    said: list[str] = []
    trial = trial_of("perinvfl", rounds=7)
    lines = Lines(said.append)
    lines.waiting(["a", "b"])
    lines.waiting(["a", "b"])
    lines.round([trial], 4, None, Exchange(3, 4, 1.25, 999, 400))
    lines.finished([trial], 9.0, "ε = 1")
    assert said[0] == "waiting for a, b" and len(said) == 3
    assert said[1] == "PerInvFL, seed 0: round 4, 3/4 replies, 1.25 s, 999 B up, 400 B down"
    assert said[2] == "PerInvFL, seed 0: done in 9.0 s; ε = 1"
    assert [in_bytes(n) for n in (0, 1500, 2.5e6, 3e9)] == ["0 B", "1.5 kB", "2.5 MB", "3 GB"]
