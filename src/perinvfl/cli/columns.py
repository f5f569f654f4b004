"""Which columns of a table a command takes for label, client and context where it is told of none of them."""

from pathlib import Path
from typing import TYPE_CHECKING

from perinvfl.core.saying import say
from perinvfl.errors import UserError

if TYPE_CHECKING:
    from perinvfl.data.own.guess import Guess

USUAL = {"label": "label", "client": "client", "context": "context"}  # names of columns


def named_or_guessed(path: Path, given: dict[str, str | None], usual: dict[str, str], quiet: bool) -> dict[str, str]:
    """By role. If one is given, the others have their usual names; else a table's are guessed as by `perinvfl init`,
    unless there is a column with the usual name.

    quiet: what was guessed is said on the side, because a program reads the output.
    """
    from perinvfl.data.own.guess import guess_roles
    from perinvfl.data.own.readers import TABLES, whole_table

    named = {role: usual[role] if name is None else name for role, name in given.items()}
    if any(name is not None for name in given.values()) or path.suffix.lower() not in TABLES or not path.is_file():
        return named
    try:
        cells = whole_table(path)
        guesses = guess_roles(cells, {role: name for role, name in USUAL.items() if name in cells.header})
    except UserError:
        return named  # what is wrong with the table is said by whoever reads it next
    found = {role: guess.column or ("" if role == "context" else usual[role]) for role, guess in guesses.items()}
    for role, guess in guesses.items():
        if (guess.column or role == "context") and guess.column != USUAL[role]:  # else its usual name is looked for
            say_guess(role, guess, quiet)
    return found


def say_guess(role: str, guess: "Guess", quiet: bool = False) -> None:
    say(f"{role + ':':<9}{guess.column or 'none'} ({guess.why})", stderr=quiet)
