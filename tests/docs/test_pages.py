"""What the documentation tells people to type is typed here, page by page, and must answer as the page shows.

In docs/*.md, `<!-- tested -->` before a block has it run, in order, in one folder a page; `<!-- tested: 2 -->` says
with which exit code it ends, and `<!-- file: NAME -->` writes a block to a file. A block of sh or python must only
succeed. In a console block lines after a command are what it must print, where `...` stands for anything.

On the first page every command is a fresh process; on the others `perinvfl` begins with torch imported already, which
is most of the time that a small command takes (`tests/warm.py`).
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perinvfl.results.table import make_table
from perinvfl.runs.records import find_runs
from tests.commands import ROOT, environment
from tests.warm import Warm

BESIDE = ("experiments", "examples", "results")  # what a user has in the project's folder
MARKED = re.compile(
    r"^<!-- (?:tested(?:: (?P<code>\d+))?|file: (?P<file>\S+)) -->\n+```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Step:
    """One file to write, or one program, how it must end and what it must print."""

    file: str
    text: str
    shown: str = ""
    code: int = 0
    program: tuple[str, ...] = ("bash", "-ec")


def steps_of(page: str) -> list[Step]:
    found: list[Step] = []
    for block in MARKED.finditer(page):
        body, code = block["body"], int(block["code"] or 0)
        if block["file"]:
            found.append(Step(block["file"], body))
        elif block["kind"] == "console":
            first, *commands = re.split(r"^\$ ", body, flags=re.M)
            assert not first.strip(), "a tested block begins with a command"
            for number, command in enumerate(commands, start=1):
                line, _, shown = command.partition("\n")
                found.append(Step("", line, shown, code if number == len(commands) else 0))
        else:
            assert block["kind"] in ("sh", "python"), f"a block of {block['kind']} cannot be tested"
            program = ("bash", "-ec") if block["kind"] == "sh" else (sys.executable, "-W", "error", "-c")
            found.append(Step("", body, code=code, program=program))
    return found


def pattern_of(shown: str) -> re.Pattern[str]:
    """`...` alone on a line is any lines, within a line any text."""
    lines = []
    for line in shown.rstrip("\n").split("\n"):
        within = ".*".join(re.escape(part) for part in line.rstrip().split("..."))
        lines.append(r"(?:.*\n)*" if line.strip() == "..." else rf" *{within} *\n")
    return re.compile("".join(lines))


def carry_out(steps: list[Step], folder: Path, programs: Path | None = None) -> None:
    """In a fresh folder. programs: a folder with programs to be taken before all others."""
    folder.mkdir(exist_ok=True)
    for name in BESIDE:
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    path = os.pathsep.join(
        [*([str(programs)] if programs else []), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    for step in steps:
        if step.file:
            (folder / step.file).write_text(step.text, encoding="utf-8")
            continue
        done = subprocess.run(
            [*step.program, step.text], cwd=folder, capture_output=True, text=True, env={**environment(), "PATH": path}
        )
        assert done.returncode == step.code, f"$ {step.text}\n{done.stdout}{done.stderr}"
        if step.shown.strip():
            printed = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
            assert pattern_of(step.shown).fullmatch(printed), (
                f"$ {step.text}\nprinted:\n{printed}\nshown:\n{step.shown}"
            )


TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
PAGES = {name: steps for name, text in TEXTS.items() if (steps := steps_of(text))}


FRESH = "start"
IMPORTED = ("cli", "runs.train", "runs.loaded", "diagnose", "export.formats", "report", "plots.charts")


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`perinvfl` in a folder of its own, as a process that begins with everything imported."""
    folder = tmp_path_factory.mktemp("programs")
    modules = [*(f"perinvfl.{name}" for name in IMPORTED), "onnxscript", "torch._dynamo", "vl_convert"]
    warm = Warm(folder, environment(), *modules)
    program = folder / "perinvfl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {ROOT}/tests/warm.py call {warm.address} "$@"\n')
    program.chmod(0o755)
    yield folder
    warm.close()


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_what_it_says(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    carry_out(PAGES[page], tmp_path, None if page == FRESH else request.getfixturevalue("programs"))
    if page == "own_data":
        check_own_data(TEXTS[page], tmp_path / "runs/sites")
    if page == "start":
        check_start(TEXTS[page], tmp_path / "runs/first")


def check_start(text: str, runs: Path) -> None:
    """What the first page says each method reaches."""
    rows = {row.method: row.cases for row in make_table(find_runs(runs)).rows}
    said = re.search(r"right for (\d+) % of the images.*right for (\d+) % in every test.*right for (\d+) %", text)
    assert said is not None
    for number, method in zip(said.groups(), ("FedAvg", "Recommended", "Constant"), strict=True):
        assert rows[method]["0.1"][0] == pytest.approx(float(number), abs=2)
    assert max(case[0] for case in rows["Recommended"].values()) < rows["Recommended"]["0.1"][0] + 2


def check_own_data(text: str, runs: Path) -> None:
    """What the page says each method reaches, in the held-out year and in the others."""
    rows = {row.method: row.cases for row in make_table(find_runs(runs)).rows}
    held_out = re.search(
        r"`recommended` reaches (\d+) %.*FedAvg reaches (\d+) % and Ditto (\d+) %.*constant.* with (\d+) %", text
    )
    inside = re.search(r"the other way round, (\d+) % for `recommended` and (\d+) % for FedAvg", text)
    assert held_out is not None and inside is not None
    said = [(method, "2023") for method in ("Recommended", "FedAvg", "Ditto", "Constant")]
    said += [("Recommended", "same contexts"), ("FedAvg", "same contexts")]
    for (method, case), number in zip(said, [*held_out.groups(), *inside.groups()], strict=True):
        assert rows[method][case][0] == pytest.approx(float(number), abs=2)


def test_pages_that_must_be_tested_are_and_every_mark_is_read() -> None:
    must = {"start", "results", "choosing", "walkthrough", "api", "new_algorithm"}
    assert must | {"own_data", "data_files", "scores", "many_clients", "own_model"} <= set(PAGES)
    for name, text in TEXTS.items():
        assert len(MARKED.findall(text)) == len(re.findall(r"^<!-- (?:tested|file|run)\b", text, re.M)), name


def test_the_extractor_notices_what_is_not_true(tmp_path: Path) -> None:
    page = "<!-- file: a.txt -->\n```\none\ntwo\n```\n\n<!-- tested -->\n```console\n$ cat a.txt\n{}\n$ true\n```\n"
    for number, (shown, true) in enumerate(
        [("one\ntwo", True), ("...\ntwo", True), ("o...e\n...", True), ("one", False), ("one\n2", False)]
    ):
        folder = tmp_path / str(number)
        if true:
            carry_out(steps_of(page.format(shown)), folder)
        else:
            with pytest.raises(AssertionError, match="printed"):
                carry_out(steps_of(page.format(shown)), folder)
    for kind, text in (("sh", "false\ntrue"), ("python", "raise SystemExit(3)")):
        with pytest.raises(AssertionError, match=r"false|SystemExit"):
            carry_out(steps_of(f"<!-- tested -->\n```{kind}\n{text}\n```\n"), tmp_path / kind)
    carry_out(steps_of("<!-- tested: 3 -->\n```console\n$ true\n$ exit 3\n```\n"), tmp_path / "code")
    assert steps_of("```console\n$ not marked\n```\n") == []
