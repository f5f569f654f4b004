"""What is written from the published records says what they say: tables in the documentation, and presets."""

from pathlib import Path

import pytest

from scripts import make_doc_tables, make_presets
from tests.commands import ROOT
from tests.reproduce.tables import published


def test_tables_in_the_documentation_are_those_of_the_records(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_doc_tables, "read", published)
    assert make_doc_tables.main(["--check"]) == 0, capsys.readouterr().out


def test_presets_are_those_of_the_records(tmp_path: Path) -> None:
    make_presets.main(tmp_path, published)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.toml")}
    kept = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "src/perinvfl/runs/presets").glob("*.toml")}
    assert made and made == kept
