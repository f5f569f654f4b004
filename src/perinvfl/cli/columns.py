"""Which columns of a table a command takes for label, client and context where it is not told."""

from pathlib import Path
from typing import TYPE_CHECKING

from perinvfl.core.saying import say
from perinvfl.errors import UserError

if TYPE_CHECKING:
    from perinvfl.data.own.guess import Guess

USUAL = {"label": "label", "client": "client", "context": "context"}  # names of columns


def named_or_guessed(path: Path, given: dict[str, str | None], usual: dict[str, str], quiet: bool) -> dict[str, str]:
    """By role. What is not given is the column of the usual name, or else guessed as by `perinvfl init`; of files that
    are no tables it always has its usual name.

    quiet: what was guessed is said on the side, because a program reads the output.
    """
    from perinvfl.data.own.guess import guess_roles
    from perinvfl.data.own.readers import TABLES, whole_table

    asked = {role: name for role, name in given.items() if name is not None}
    named = {role: asked.get(role, usual[role]) for role in given}
    if len(asked) == len(given) or path.suffix.lower() not in TABLES or not path.is_file():
        return named
    try:
        cells = whole_table(path)
    except UserError:
        return named  # what is wrong with the table is said by whoever reads it next
    there = {role: name for role, name in USUAL.items() if name in cells.header and name not in asked.values()}
    known = there | asked
    guesses = {role: guess for role, guess in guess_roles(cells, known).items() if role not in known}
    for role, guess in guesses.items():
        if guess.column or role == "context":  # else its usual name is looked for
            say_guess(role, guess, quiet)
    guessed = {role: guess.column for role, guess in guesses.items() if guess.column or role == "context"}
    return named | there | guessed | asked


def say_guess(role: str, guess: "Guess", quiet: bool = False) -> None:
    say(f"{role + ':':<9}{guess.column or 'none'} ({guess.why})", stderr=quiet)
