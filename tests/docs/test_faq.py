"""The messages that the page of questions explains are messages of the program."""

import ast
import re

import pytest

from tests.commands import ROOT

PAGE = (ROOT / "docs/faq.md").read_text(encoding="utf-8")
SAID = [message for message in re.findall(r"^`([^`]+)`(?:, and .*)?\n: ", PAGE, re.M) if "pip install" not in message]


def text_of(node: ast.AST) -> str:
    """A text of the source with … for what is put in."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)


@pytest.fixture(scope="module")
def texts() -> str:
    found = []
    for path in sorted((ROOT / "src/perinvfl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                found.append(text_of(node).replace("`", "…"))
    return "\n".join(found)


def test_there_are_messages_and_each_has_an_answer() -> None:
    assert len(SAID) > 25
    assert len(SAID) + 1 == len(re.findall(r"^: ", PAGE, re.M))


@pytest.mark.parametrize("message", SAID)
def test_the_program_says_it(message: str, texts: str) -> None:
    assert message.rstrip("…") in texts
