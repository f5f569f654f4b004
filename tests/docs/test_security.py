"""Every promise of SECURITY.md names a test that is there."""

import re

from tests.commands import ROOT


def test_every_promise_names_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "tests/" in line]
    assert len(rows) > 8
    for row in rows:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row):
            content = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {name or 'test_'}" in content, row
