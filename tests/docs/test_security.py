"""Every promise of SECURITY.md names a test that is there."""

import re

from tests.commands import ROOT


def test_every_promise_names_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    promised = text.split("## What is promised")[1].split("\n## ")[0]
    _, *rows = [line for line in promised.splitlines() if line.startswith("| ")]
    assert len(rows) > 8
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert named, row
        for file, name in named:
            content = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {name or 'test_'}" in content, row
