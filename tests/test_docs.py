"""What the pages tell to do works: their marked blocks are run in order, in a fresh folder.

`<!-- run -->` before a block of sh or python runs it (`<!-- run: 2 -->`: it must end with that exit code);
`<!-- file: NAME -->` writes the block to a file.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT, environment

from perinvfl.records import find_runs
from perinvfl.tables import make_table

PAGES = ("own_data", "api", "new_algorithm")
BLOCK = re.compile(r"^<!-- (run|file)(?:: (\S+))? -->\n```(\w+)\n(.*?)^```$", re.M | re.S)


def blocks(page: str) -> list[tuple[str, str, str, str]]:
    return [match.groups(default="") for match in BLOCK.finditer((ROOT / f"docs/{page}.md").read_text())]


@pytest.mark.parametrize("page", PAGES)
def test_every_marked_block_of_a_page_works(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    folder = str(Path(sys.executable).parent)
    there = {**environment(), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    found = blocks(page)
    assert len(found) == (ROOT / f"docs/{page}.md").read_text().count("\n<!-- ") and len(found) >= 3
    for action, told, language, text in found:
        if action == "file":
            (tmp_path / told).write_text(text)
            continue
        command = {"sh": ["bash", "-ec", text], "python": [sys.executable, "-W", "error", "-c", text]}[language]
        done = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True)
        assert done.returncode == int(told or 0), f"{text}\n{done.stdout}\n{done.stderr}"
        if page == "own_data" and told == "2":
            shown = re.search(r"```text\n(.*?)\n```", (ROOT / "docs/own_data.md").read_text(), re.S)
            assert shown is not None and shown[1] in done.stdout
    if page == "own_data":
        check_numbers(tmp_path / "runs/sites")


def check_numbers(runs: Path) -> None:
    """What the page says each method reaches, in the held-out year and in the others."""
    rows = {row.method: row.cases for row in make_table(find_runs(runs)).rows}
    text = (ROOT / "docs/own_data.md").read_text()
    held_out = re.search(r"FedAvg reaches (\d+) %.*constant answer reaches (\d+) %.*PerInvFL reaches (\d+) %", text)
    inside = re.search(r"the other way round, (\d+) % and (\d+) %", text)
    assert held_out is not None and inside is not None
    said = [("FedAvg", "2023"), ("Constant", "2023"), ("PerInvFL", "2023")]
    said += [("FedAvg", "same contexts"), ("PerInvFL", "same contexts")]
    for (method, case), number in zip(said, [*held_out.groups(), *inside.groups()], strict=True):
        assert rows[method][case][0] == pytest.approx(float(number), abs=2)
