"""Files that only other services read: workflows, templates, hooks, the citation. Their syntax, and what they name."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import perinvfl
from tests.commands import ROOT

SCHEMAS = {
    "vendor.github-workflows": ".github/workflows/*.yml",
    "custom.github-workflows-require-timeout": ".github/workflows/*.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "vendor.github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "vendor.readthedocs": ".readthedocs.yaml",
    "vendor.citation-file-format": "CITATION.cff",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_follow_their_schema(schema: str) -> None:
    files = sorted(map(str, ROOT.glob(SCHEMAS[schema])))
    assert files
    line = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, "--default-filetype", "yaml", *files]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def make_targets() -> dict[str, str]:
    """The targets of the Makefile with their lines."""
    return dict(re.findall(r"^([\w-]+):[^=\n]*\n((?:\t.*\n)*)", text_of("Makefile"), flags=re.M))


def test_hooks_check_what_make_check_does() -> None:
    (repository,) = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"]
    hooks = [hook["entry"].removeprefix("make ") for hook in repository["hooks"]]
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in repository["hooks"])
    assert make_targets()["check"].split("--output-sync=target ")[1].split() == hooks


def test_workflows_call_targets_that_there_are() -> None:
    called = set()
    for file in (ROOT / ".github/workflows").glob("*.yml"):
        called |= set(re.findall(r"\bmake ([\w-]+)", file.read_text(encoding="utf-8")))
    assert {"check", "test", "docs"} <= called <= set(make_targets())


def test_the_python_versions_are_those_that_are_tested() -> None:
    classified = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line}
    for name, job in (("tests", "check"), ("wheel", "install")):
        jobs = yaml.safe_load(text_of(f".github/workflows/{name}.yml"))["jobs"]
        assert set(jobs[job]["strategy"]["matrix"]["python"]) == classified
    assert PROJECT["requires-python"] == f">={min(classified)}"


def test_the_version_is_the_same_everywhere() -> None:
    """It is written in perinvfl/__init__.py; what cannot read it there is compared."""
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    citation = yaml.safe_load(text_of("CITATION.cff"))
    newest = re.search(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", text_of("CHANGELOG.md"), flags=re.M)
    assert newest is not None
    assert newest.groups() == (perinvfl.__version__, str(citation["date-released"]))
    assert citation["version"] == perinvfl.__version__
    assert f"version = {{{perinvfl.__version__}}}" in text_of("docs/cite.md")


def test_extras_that_messages_name_are_there() -> None:
    named = set()
    for folder in ("src", "docs"):
        for file in (*(ROOT / folder).rglob("*.py"), *(ROOT / folder).glob("*.md")):
            content = file.read_text(encoding="utf-8")
            named |= set(re.findall(r"how_to_install\([\"'](\w+)[\"']\)", content))
            named |= set(re.findall(r"perinvfl\[([a-z]+)\]", content))
            named |= set(re.findall(r'need\("[\w.]+", "(\w+)"', content))
    assert {"plot", "tables", "export", "track", "sklearn", "photos", "federation"} <= named
    assert named <= set(PROJECT["optional-dependencies"])


def links_of(name: str) -> list[str]:
    return re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text_of(name))


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name: str) -> None:
    for link in links_of(name):
        assert (ROOT / name).parent.joinpath(link).exists(), link
    assert Path("docs/site_security.md") in map(Path, links_of("SECURITY.md"))
