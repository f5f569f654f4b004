"""Pages made from the code: one for each algorithm, one for the command line, one with every setting.

An algorithm's page is its docstring, the equations of docs/equations/NAME.md, its settings and its source. An algorithm
without equations stops the build.
"""

import inspect
import re
from pathlib import Path
from typing import Any

import click
import typer
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

import perinvfl
from perinvfl.algorithms import ALGORITHMS
from perinvfl.algorithms.base import Algorithm
from perinvfl.cli.app import app as commands
from perinvfl.runs.catalogue import Entry, read_catalogue

HERE = Path(__file__).parent.parent


def write(path: Path, text: str) -> None:
    """Only what has changed, so that a second build is quick."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def settings_table(entry: Entry) -> str:
    """On a phone a row becomes a block (page.css), so the table has a class."""
    if not entry.settings:
        return "There is nothing to set."
    lines = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for setting in entry.settings:
        name = f"`{setting.name}`" + (f" ({setting.symbol})" if setting.symbol else "")
        default = f"`{setting.default_text}`" if setting.default_text else ""
        cells = (name, default, setting.allowed, setting.meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return '<div class="settings">\n\n' + "\n".join(lines) + "\n\n</div>"


def algorithm_page(name: str, algorithm: type[Algorithm]) -> str:
    equations = HERE / "equations" / f"{name}.md"
    if not equations.exists():
        raise ExtensionError(f"docs/equations/{name}.md is missing: the equations of {name} belong there.")
    # The package may be this checkout or an installed one; the page shows the file of the checkout.
    source = Path("src/perinvfl", Path(inspect.getfile(algorithm)).relative_to(Path(perinvfl.__file__).parent))
    return f"""# {algorithm.title}

{inspect.getdoc(algorithm)}

{f"From: {algorithm.paper}." if algorithm.paper != "-" else "From no paper."} In an experiment file: `name = "{name}"`.

{equations.read_text(encoding="utf-8").strip()}

## Settings

{settings_table(read_catalogue().algorithms[name])}

## Source

This is `{source}`. The code that all algorithms share is on [a page of its own](base.md).

```{{literalinclude}} ../../{source}
:language: python
```
"""


BASE = """# What all algorithms share

{equations}

## Source

{sources}
"""
SHARED = {
    "messages.py": "What goes back and forth in a round, and what stays",
    "base.py": "The shape of an algorithm",
    "personal.py": "A model for each client: trained along with the shared one, or fine-tuned from it",
    "local_steps.py": "Local steps of the global model",
    "parts.py": "Models of which a part is personal",
    "aggregation/base.py": "How updates are combined: the interface",
    "aggregation/mean.py": "The mean",
    "aggregation/fedgma.py": "FedGMA's mask (`agreement`)",
    "aggregation/fedomg.py": "FedOMG's matching (`matching`)",
    "aggregation/trimmed.py": "The trimmed mean and the median (`trimming`)",
    "aggregation/clipped.py": "Updates clipped by norm (`clipping`)",
}


def base_page() -> str:
    sources = "\n".join(
        f"### {title}\n\n```{{literalinclude}} ../../src/perinvfl/algorithms/{path}\n:language: python\n```\n"
        for path, title in SHARED.items()
    )
    return BASE.format(equations=(HERE / "equations/base.md").read_text(encoding="utf-8").strip(), sources=sources)


def command_page() -> str:
    group = typer.main.get_command(commands)
    assert isinstance(group, click.Group)
    found = _flat(group, "perinvfl")
    first = "\n".join(
        f"| [`{name}`](#{name.replace(' ', '-')}) | {_literal(_summary(command))} |" for name, command in found
    )
    parts = [
        "# Commands",
        "Every command explains itself with `--help`. After a mistake it prints one sentence and exits with code 2.",
        f"| command | what it does |\n|---|---|\n{first}",
    ]
    for name, command in found:
        arguments = [p for p in command.params if isinstance(p, click.Argument)]
        options = [p for p in command.params if isinstance(p, click.Option)]
        usage = " ".join([name, *(p.make_metavar(click.Context(command)) for p in arguments), "[OPTIONS]"])
        rows = [(p.human_readable_name, getattr(p, "help", "")) for p in arguments]
        rows += [(_option(p, command), f"{p.help or ''}{_default(p)}") for p in options]
        table = "\n".join(f"| `{key}` | {_literal(meaning)} |" for key, meaning in rows)
        parts += [
            f"## {name}",
            inspect.cleandoc(command.help or ""),
            f"```\n{usage}\n```",
            f"| | |\n|---|---|\n{table}",
        ]
    return "\n\n".join(parts) + "\n"


def _summary(command: click.Command) -> str:
    """The first sentence of its help."""
    return re.split(r"(?<=[.])\s", " ".join((command.help or "").split()))[0]


def _option(option: click.Option, command: click.Command) -> str:
    """Its names and, unless it is a flag, what it takes."""
    names = ", ".join(option.opts)
    if option.is_flag:
        return names
    taken = option.make_metavar(click.Context(command)).removesuffix(" RANGE")
    return f"{names} {_name(option) if _choices(option) else taken}"


def _name(option: click.Option) -> str:
    return (option.name or "").upper().replace("_", "-")


def _choices(option: click.Option) -> list[str]:
    return [str(choice) for choice in getattr(option.type, "choices", ())]


def _default(option: click.Option) -> str:
    """What it may be, and what it is where nobody says."""
    value, choices = option.default, _choices(option)
    allowed = f" One of: {', '.join(choices)}." if choices else ""
    if option.is_flag or callable(value) or value in (None, "", ()) or "default" in (option.help or ""):
        return allowed
    return f"{allowed} Default: {value}."


def _literal(text: str) -> str:
    """Options and empty quotes as code: the page's typography would make one dash of two."""
    return re.sub(r"(?<![\w`-])(--[a-z][\w-]*|\"\")(?!`)", r"`\1`", text)


def _flat(group: click.Group, prefix: str) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name, command in group.commands.items():
        path = f"{prefix} {name}"
        found += _flat(command, path) if isinstance(command, click.Group) else [(path, command)]
    return found


def settings_page() -> str:
    parts = [
        "# Settings",
        "All settings of an experiment file. Those of an algorithm are on [its own page](algorithms/index.md).",
    ]
    catalogue = read_catalogue()
    for section in catalogue.sections.values():
        parts += [f"## {section.title}", settings_table(section)]
    for name, benchmark in catalogue.benchmarks.items():
        table = f"<details><summary>Settings</summary>\n\n{settings_table(benchmark)}\n\n</details>"
        parts += [f'## [data] benchmark = "{name}"', f"{benchmark.title.capitalize()}.", table]
    return "\n\n".join(parts) + "\n"


def index_page() -> str:
    lines = "\n".join(ALGORITHMS)
    rows = "\n".join(
        f"| [{algorithm.title}]({name}.md) | {_tick(algorithm.has_global)} | {_tick(algorithm.has_personal)} | "
        f"{algorithm.paper} |"
        for name, algorithm in ALGORITHMS.items()
    )
    return f"""# Algorithms

Each algorithm is one file that says what ONE client and ONE server do in a round. Its page has the equations, the
settings and the code. [Methods](../methods.md) compares what they send and what they cost.

| | global model | personal models | from |
|---|---|---|---|
{rows}

```{{toctree}}
:hidden:

base
{lines}
```
"""


def _tick(yes: bool) -> str:
    return "yes" if yes else ""


def generate(app: Sphinx) -> None:
    folder = HERE / "algorithms"
    write(folder / "index.md", index_page())
    write(folder / "base.md", base_page())
    for name, algorithm in ALGORITHMS.items():
        write(folder / f"{name}.md", algorithm_page(name, algorithm))
    write(HERE / "commands.md", command_page())
    write(HERE / "settings.md", settings_page())


def list_pages(app: Sphinx, name: str, source: list[str]) -> None:
    """In index.md, `page?` lists a page that need not be there, and `others?` all that no page names.

    A link to a file of the project that is no page, `[words](../FILE)`, is its words alone.
    """
    if name.startswith("notebooks/"):
        return  # JSON
    folder = (HERE / name).parent
    source[0] = re.sub(
        r"\[([^\]]+)\]\((\.\./[^)#]+)[^)]*\)",
        lambda link: link[0] if (folder / link[2]).resolve().is_relative_to(HERE.resolve()) else link[1],
        source[0],
    )
    if name != "index":
        return
    pages = "".join(path.read_text(encoding="utf-8") for path in HERE.glob("*.md"))
    toctrees = "".join(re.findall(r"^```\{toctree\}.*?^```$", pages, flags=re.M | re.S))
    named = set(re.findall(r"^(\w+)\??$", toctrees, flags=re.M)) | {"index"}

    def keep(found: re.Match[str]) -> str:
        listed = sorted({path.stem for path in HERE.glob("*.md")} - named) if found[1] == "others" else [found[1]]
        return "".join(f"{page}\n" for page in listed if (HERE / f"{page}.md").exists())

    source[0] = re.sub(r"^(\w+)\?\n", keep, source[0], flags=re.M)


def read_signature(app: Sphinx, what: str, name: str, obj: Any, options: Any, arguments: Any, returns: Any) -> Any:
    """A default made by a factory has no text that Python can read."""
    return (arguments.replace("<factory>", "..."), returns) if arguments else None


def read_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are written to be read in the code; `code`, fences and |x| are made into reStructuredText here."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()  # what Python says of every field of a tuple
    made: list[str] = []
    fenced = False
    for line in lines:
        if line.startswith("```"):
            fenced = not fenced
            made += ["", ".. code-block:: toml", ""] if fenced else [""]
        elif fenced:
            made.append(f"   {line}")
        elif line.lstrip().startswith((">>>", "...")):
            made.append(line)
        else:
            made.append(re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line).replace("|", "\\|").replace("*", "\\*"))
    lines[:] = made


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", generate)
    app.connect("source-read", list_pages)
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("autodoc-process-signature", read_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
