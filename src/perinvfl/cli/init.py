"""`perinvfl init`: a first experiment file for a table of your own."""

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perinvfl.cli.columns import say_guess
from perinvfl.cli.options import Category, Client, Context, Label, Missing, missing_values
from perinvfl.core.config import suggest
from perinvfl.core.naming import counted, is_whole_text, visible
from perinvfl.core.saying import say
from perinvfl.errors import UserError

if TYPE_CHECKING:
    from perinvfl.data.own.guess import Guess
    from perinvfl.data.own.readers.tables import Cells
    from perinvfl.runs.draft import Draft

NONE = "-"  # what to type for no column
QUESTIONS = {
    "label": "Which column is to be predicted?",
    "client": f"Which column names the client ({NONE}: none)?",
    "context": f"Which column names the context, such as a year ({NONE}: none)?",
}


def init(
    path: Annotated[Path, typer.Argument(help="A CSV or Parquet table.")],
    label: Label = None,
    client: Client = None,
    context: Context = None,
    category: Category = None,
    missing: Missing = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file to write; by default named after the table.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: take what is guessed.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented experiment file for a table: asks or guesses what its columns are. Nothing is trained."""
    from perinvfl.core.files import write_atomically
    from perinvfl.data.own.guess import guess_roles
    from perinvfl.data.own.readers import TABLES, whole_table
    from perinvfl.runs.draft import draft_text

    if path.suffix.lower() not in TABLES:
        raise UserError(f"{path}: init reads tables, whose names end in {', '.join(TABLES)}.")
    if not path.is_file():
        raise UserError(f"{path} does not exist.")
    file = out or Path(f"{path.stem}.toml")
    asking = sys.stdin.isatty() and sys.stdout.isatty() and not yes
    _check_free(file, force, asking)
    cells = whole_table(path)
    given = {
        role: name for role, name in (("label", label), ("client", client), ("context", context)) if name is not None
    }
    for role, name in given.items():
        _check_column(f"--{role}", name, cells)
    guesses = guess_roles(cells, given)
    for role, guess in guesses.items():
        if asking and role not in given:
            guesses[role] = _ask(role, guess, cells)
        elif not guess.column and role not in given and role != "context":
            none = "" if role == "label" else f', or --{role} "" if all rows are of one'
            raise UserError(f"{path}: {guess.why}; say with --{role} which column is the {role}{none}.")
    for role, guess in guesses.items():
        say_guess(role, guess)
    declared = {"categories": category or [], "missing_values": missing_values(missing)}
    for name in [*declared["categories"], *declared["missing_values"]]:
        _check_column("--category or --missing", name, cells)
    draft, faults = _draft(path, file, guesses, declared)
    text = draft_text(draft)
    if not is_whole_text(text):
        raise UserError(f"{path}: its name is not UTF-8 text, which an experiment file must be; rename it.")
    write_atomically(file, text.encode())
    _tell(draft, file, faults)


def _check_free(file: Path, force: bool, asking: bool) -> None:
    if not file.exists() or force:
        return
    if not (asking and typer.confirm(f"{file} already exists; replace it?")):
        raise UserError(f"{file} already exists; use --out for another file, or --force to replace it.")


def _check_column(where: str, name: str, cells: "Cells") -> None:
    if name and name not in cells.header:
        raise UserError(f'{where}: there is no column "{name}"{suggest(name, cells.header)}')


def _ask(role: str, guess: "Guess", cells: "Cells") -> "Guess":
    """Until the answer is a column."""
    from perinvfl.data.own.guess import Guess

    say(f"Columns: {', '.join(cells.header)}" if role == "label" else f"Guessed: {guess.why}.")
    while True:
        default = guess.column or NONE
        answer = typer.prompt(f"{QUESTIONS[role]} [{visible(default)}]", default=default, show_default=False)
        if answer == guess.column:
            return guess
        if answer == NONE and role != "label":
            return Guess("", "as answered")
        if answer in cells.header:
            return Guess(answer, "as answered")
        say(f'There is no column "{answer}"{suggest(answer, cells.header)}')


def _draft(path: Path, file: Path, guesses: "dict[str, Guess]", declared: dict[str, Any]) -> "tuple[Draft, int]":
    """What to write, and how much is wrong with the data as they would be read then."""
    from perinvfl.core import config
    from perinvfl.data.own.files import FileSettings
    from perinvfl.data.own.rows import IGNORE_IT
    from perinvfl.data.own.survey import survey
    from perinvfl.runs.draft import Draft, relative_path

    given: dict[str, Any] = {"path": str(path), **{role: guess.column for role, guess in guesses.items()}, **declared}
    found = survey(config.build(FileSettings, given, "data"))
    whole = [fault for fault in found["faults"] if not fault["where"]]
    ignore = {r["column"]: r["what"] for r in found["remarks"] if r["kind"] == "identifier"}
    ignore |= {fault["column"]: fault["what"] for fault in whole if fault["what"].endswith(IGNORE_IT)}
    if set(found.get("features", ())) <= set(ignore):
        ignore = {}  # something must be left to predict from
    if "task" not in found:
        raise UserError(f"{path} cannot be used: {found['grouped'][0]['message']}.")
    held, why = _held_out(found)
    kept = [remark for remark in found["remarks"] if remark["column"] not in ignore]
    remarks = [remark["message"] for remark in kept if remark["kind"] not in ("missing", "category")]
    draft = Draft(
        name=re.sub(r"[^\w .-]", "_", file.stem).strip(" .-") or "experiment",
        path=relative_path(path, file),
        columns={role: (guess.column, guess.why) for role, guess in guesses.items()},
        task=found["task"],
        rows=found["rows"],
        clients=len(found["clients"]),
        features=len(found["features"]),
        held_out=held,
        why_held_out=why,
        ignore={column: why.partition(";")[0] for column, why in ignore.items()},
        declared={key: value for key, value in declared.items() if value},
        remarks=tuple(remarks),
        notes=(*found["reading"], *found.get("look_at", [])),
    )
    return draft, sum(group["column"] not in ignore for group in found["grouped"])


def _held_out(found: dict[str, Any]) -> tuple[str, str]:
    """The last context without which every client still has rows, and all together two classes; why it, or none."""
    contexts = [context["name"] for context in found["contexts"]]
    if len(contexts) < 2:
        return "", "there is one context only, so models are tested on rows like those they were trained on"
    for name in reversed(contexts):
        left = [client["rows"] - client["contexts"].get(name, 0) for client in found["clients"]]
        others = [context.get("classes", {}) for context in found["contexts"] if context["name"] != name]
        trained = {label for classes in others for label, count in classes.items() if count}
        if min(left) >= 5 and (len(trained) > 1 or found["task"] == "regression"):
            return name, f"the last of {len(contexts)} contexts; leave_one_context_out = true would try each in turn"
    return "", "whichever is held out, some client has too little left to train on"


def _tell(draft: "Draft", file: Path, faults: int) -> None:
    say(f"{'held out:':<9} {draft.held_out or 'none'} ({draft.why_held_out})")
    for column, why in draft.ignore.items():
        say(f"left out: {column} ({why})")
    for note in draft.notes:
        say(note)
    say(f"Wrote {file}: {draft.rows} rows, {counted(draft.clients, 'client')}, {draft.task}.")
    name = shlex.quote(str(file))
    if faults:
        say(f"{counted(faults, 'error')} in the data must be corrected before it can run.")
        say(f"Next: perinvfl data check --file {name}")
        return
    if draft.remarks:
        say(f"{counted(len(draft.remarks), 'remark')} on columns; for details: perinvfl data check --file {name}")
    say(f"Next: perinvfl run {name}")
