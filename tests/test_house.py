"""The house rules, read off the source: short files, short functions, and no private name of another module.

Also a script, which lists what is wrong: `python tests/test_house.py`.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "benchmarks", "scripts", "examples")
OURS = ("perinvfl", "tests", "benchmarks", "scripts", "examples", *(path.stem for path in ROOT.glob("tests/*.py")))
LONGEST_FILE, LONGEST_FUNCTION = 350, 60
MARKUP = ("Console", "TextColumn", "escape", "from_markup", "print", "Live", "Status")  # of rich
PUBLIC = ("_replace", "_asdict", "_fields", "_make", "_field_defaults")  # of a NamedTuple


class Offence(NamedTuple):
    what: str  # a file, a function or a name
    why: str


def sources() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def long_file(path: Path, text: str, tree: ast.Module) -> Iterator[Offence]:
    lines = len(text.splitlines())
    if lines > LONGEST_FILE:
        yield Offence(named(path), f"has {lines} lines; {LONGEST_FILE} is the most: split it by subject")


def long_functions(path: Path, text: str, tree: ast.Module) -> Iterator[Offence]:
    for name, node in functions(tree):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > LONGEST_FUNCTION:
            why = f"(line {node.lineno}) has {lines} lines; {LONGEST_FUNCTION} is the most: name its parts"
            yield Offence(f"{named(path)}::{name}", why)


def private_names(path: Path, text: str, tree: ast.Module) -> Iterator[Offence]:
    """`from ours import _name`, and `_name` of anything but self, cls and super() that this file does not define."""
    own, modules = defined(tree), imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and ours(node.module or ".", node.level):
            found = [alias.name for alias in node.names if private(alias.name)]
        elif isinstance(node, ast.Attribute) and private(node.attr):
            root = origin(node.value)
            foreign = root in modules and not ours(modules[root])
            found = [] if foreign or root in ("self", "cls", "super") or node.attr in own else [node.attr]
        else:
            continue
        for name in found:
            why = f"(line {node.lineno}) is private to another module: make it public there, or do without"
            yield Offence(f"{named(path)}: {name}", why)


def plain_terminal(path: Path, text: str, tree: ast.Module) -> Iterator[Offence]:
    """Only `terminal/console.py` makes consoles and texts of bars: elsewhere a name could be read as markup."""
    modules = imported(tree)
    if not named(path).startswith("src/") or named(path).endswith("terminal/console.py"):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else origin(node.func)
            of_rich = modules.get(origin(node.func), "").partition(".")[0] == "rich"
            if of_rich and name in MARKUP:
                why = f"(line {node.lineno}) may read a name as markup: use what terminal/console.py has"
                yield Offence(f"{named(path)}: {name}", why)


def plain_printing(path: Path, text: str, tree: ast.Module) -> Iterator[Offence]:
    """Only `core/saying.py` prints: elsewhere a terminal would obey the escape sequences in a name."""
    if not named(path).startswith("src/") or named(path).endswith("core/saying.py"):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo", "click.echo"):
            why = f"(line {node.lineno}) shows what steers a terminal: use what core/saying.py has"
            yield Offence(f"{named(path)}: {ast.unparse(node.func)}", why)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in PUBLIC


def ours(module: str, level: int = 0) -> bool:
    return level > 0 or module.partition(".")[0] in OURS


def origin(node: ast.expr) -> str:
    """The name that an expression starts from: `a` of a.b[0].c(), empty where it starts from none."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            return ""
    return node.id


def imported(tree: ast.Module) -> dict[str, str]:
    """Which module each imported name comes from."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node.module or "perinvfl" for alias in node.names}
    return found


def defined(tree: ast.Module) -> set[str]:
    """Names that a file defines: functions, classes, variables, fields, and attributes that it assigns to self."""
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and origin(node.value) == "self":
            found.add(node.attr)
    return found


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its name in full, methods and inner functions included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not isinstance(child, ast.ClassDef):
                yield prefix + child.name, child
            yield from functions(child, f"{prefix}{child.name}.")
        else:
            yield from functions(child, prefix)


RULES = {
    "files": long_file,
    "functions": long_functions,
    "private names": private_names,
    "plain terminal": plain_terminal,
    "plain printing": plain_printing,
}


@cache
def parsed(path: Path) -> tuple[str, ast.Module]:
    text = path.read_text(encoding="utf-8")
    return text, ast.parse(text)


def offences(rule: str) -> list[Offence]:
    return [offence for path in sources() for offence in RULES[rule](path, *parsed(path))]


@pytest.mark.parametrize("rule", RULES)
def test_the_house_rules_are_kept(rule: str) -> None:
    wrong = [f"{offence.what} {offence.why}" for offence in offences(rule)]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from perinvfl.core.tree import _leaves", ["_leaves"]),
        ("from perinvfl.core import tree\ntree._leaves()", ["_leaves"]),
        ("def f(run):\n    run.parts[0]._take()", ["_take"]),
        ("from torch.utils import _pytree\n_pytree._x", []),
        ("import sys\nsys._getframe()", []),
        ("class A:\n    def f(self, other):\n        self._x = other._x\n        super()._y()", []),
        ("point._replace(x=1)._asdict()", []),
        ("x.__dict__", []),
    ],
)
def test_private_names_are_told_from_public_ones(code: str, found: list[str]) -> None:
    path = ROOT / "src/made_up.py"
    names = [offence.what for offence in private_names(path, code, ast.parse(code))]
    assert names == [f"src/made_up.py: {name}" for name in found]


if __name__ == "__main__":
    for offence in (offence for rule in RULES for offence in offences(rule)):
        print(offence.what, offence.why)
