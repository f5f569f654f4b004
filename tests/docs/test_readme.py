"""The README's example runs and says what it says; its headline numbers are those of the published tables."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import perinvfl as pf

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_example_ends_well_above_the_constant() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    said = io.StringIO()
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(said):
        exec(code, names)
    assert said.getvalue().startswith("column 7 changes its meaning between contexts")
    session = names["session"]
    assert isinstance(session, pf.Session)
    scores = [score for score in session.evaluate()["0.1"].values() if score is not None]
    assert len(scores) == 4 and min(scores) > 0.78
    assert sum(scores) / len(scores) == pytest.approx(0.82, abs=0.005)


def test_headline_numbers_are_those_of_the_worlds() -> None:
    """docs/beyond.md's tables are written from the records (scripts/make_doc_tables.py, itself tested)."""
    table = (ROOT / "docs/beyond.md").read_text()

    def average(method: str) -> str:
        return re.findall(rf"^\| {re.escape(method)} \| ([\d.]+) \|", table, re.MULTILINE)[0]

    (rows,) = re.findall(r"^\| FedAvg \|.*?\n\n", README, re.DOTALL | re.MULTILINE)
    last = [re.findall(r"[\d.]+", row.split("|")[3])[0] for row in rows.strip().splitlines()]
    assert last[:3] == [average("FedAvg"), average("GroupDRO over XRM's split"), average("Recommended")]


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        if not link.startswith("http"):
            assert (ROOT / link).exists() or link.startswith(".github/"), link
