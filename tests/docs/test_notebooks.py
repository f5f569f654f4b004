"""The notebooks: kept without outputs, and run as a reader runs them, in an empty folder. And the gallery."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.commands import ROOT

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
# What the text says of the results, as code that is run at the end.
CLAIMS = {
    "digits": """
assert accuracy["FedAvg"][0] < 15 and min(accuracy["recommended"]) > 60
assert max(accuracy["recommended"]) - min(accuracy["recommended"]) < 1
assert "mixture" in str(recommended.found)
""",
    "my_table": """
assert scores["auroc"]["value"] > 0.75 and min(own.values()) > 0.7
assert session.predict_proba(row, client="cleveland")[0, 1] > 0.5
""",
    "new_algorithm": """
assert same and results["FadingProx"]["all classes"] > 0.5
""",
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs_and_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None, "clear all outputs before committing"
    notebook.cells.append(nbformat.v4.new_code_cell(CLAIMS[path.stem]))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    streams = [out for cell in notebook.cells for out in cell.get("outputs", ()) if out.output_type == "stream"]
    assert streams and not [out.text for out in streams if out.name == "stderr"]


def test_every_figure_is_in_the_gallery_under_a_command() -> None:
    text = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    shown = re.findall(r"\{figure\} figures/(\S+)", text)
    by_hand = {"idea", "architecture"}
    assert {Path(name).stem for name in shown} | by_hand == {path.stem for path in (ROOT / "docs/figures").iterdir()}
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        before, *_ = section.split("{figure}")
        assert re.search(r"^```\n(perinvfl|python)", before, flags=re.M), section[:60]
