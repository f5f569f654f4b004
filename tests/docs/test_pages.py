"""What the documentation tells people to type is typed here, page by page, and must answer as the page shows.

In docs/*.md, `<!-- tested -->` before a ```console block has its commands run, in order, in one folder a page;
`<!-- file: NAME -->` before any other block writes that file first. Lines after a command are what it must print, where
`...` stands for anything; where none are shown, it must only succeed.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BESIDE = ("experiments", "examples", "results")  # what a user has in the project's folder
MARKED = re.compile(
    r"^<!-- (?P<mark>tested|file: (?P<file>\S+)) -->\n+```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Step:
    """One file to write, or one command and what it must print."""

    file: str
    text: str
    shown: str = ""


def steps_of(page: str) -> list[Step]:
    found: list[Step] = []
    for block in MARKED.finditer(page):
        if block["file"]:
            found.append(Step(block["file"], block["body"]))
            continue
        assert block["kind"] == "console", f"only console blocks can be tested, not {block['kind']}"
        first, *commands = re.split(r"^\$ ", block["body"], flags=re.M)
        assert not first.strip(), "a tested block begins with a command"
        for command in commands:
            line, _, shown = command.partition("\n")
            found.append(Step("", line, shown))
    return found


def pattern_of(shown: str) -> re.Pattern[str]:
    """`...` alone on a line is any lines, within a line any text."""
    lines = []
    for line in shown.rstrip("\n").split("\n"):
        within = ".*".join(re.escape(part) for part in line.rstrip().split("..."))
        lines.append(r"(?:.*\n)*" if line.strip() == "..." else rf" *{within} *\n")
    return re.compile("".join(lines))


def carry_out(steps: list[Step], folder: Path) -> None:
    for name in BESIDE:
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for step in steps:
        if step.file:
            (folder / step.file).write_text(step.text, encoding="utf-8")
            continue
        done = subprocess.run(
            ["bash", "-c", step.text], cwd=folder, capture_output=True, text=True,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, f"$ {step.text}\n{done.stdout}{done.stderr}"
        if step.shown.strip():
            printed = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
            assert pattern_of(step.shown).fullmatch(printed), (
                f"$ {step.text}\nprinted:\n{printed}\nshown:\n{step.shown}"
            )


PAGES = {path.stem: steps_of(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "docs").glob("*.md"))}


@pytest.mark.parametrize("page", [name for name, steps in PAGES.items() if steps])
def test_the_commands_of_a_page_do_what_it_says(page: str, tmp_path: Path) -> None:
    carry_out(PAGES[page], tmp_path)


def test_pages_that_must_be_tested_are() -> None:
    assert {"start", "results", "choosing", "walkthrough"} <= {name for name, steps in PAGES.items() if steps}


def test_the_extractor_notices_what_is_not_true(tmp_path: Path) -> None:
    page = "<!-- file: a.txt -->\n```\none\ntwo\n```\n\n<!-- tested -->\n```console\n$ cat a.txt\n{}\n$ true\n```\n"
    for number, (shown, true) in enumerate(
        [("one\ntwo", True), ("...\ntwo", True), ("o...e\n...", True), ("one", False), ("one\n2", False)]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        if true:
            carry_out(steps_of(page.format(shown)), folder)
        else:
            with pytest.raises(AssertionError, match="printed"):
                carry_out(steps_of(page.format(shown)), folder)
    with pytest.raises(AssertionError, match="false"):
        carry_out([Step("", "false")], tmp_path)
    assert steps_of("```console\n$ not marked\n```\n") == []
