"""Decimal commas: `19,4` for 19.4, as spreadsheets write numbers in many countries.

Where cells are separated by semicolons or tabs, a column is read so if each of its values is a whole number or has a
decimal comma. Where that is doubtful the column stays as it stands, and a sentence says so.
"""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from perinvfl.core.naming import listed, shortened
from perinvfl.data.own.rows import MISSING, number_of

WITH_COMMA = r"(?:\d*|\d{1,3}(?:\.\d{3})+),\d+"  # 19,4 or 1.234,5
NUMBER = re.compile(rf"[+-]?(?:\d+|{WITH_COMMA})(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
PERHAPS_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}", re.ASCII)


class Pointed(NamedTuple):
    """A column with decimal points for commas, if it was read so."""

    cells: list[str]
    read: bool = False
    doubt: str = ""  # why it was not, though it looks like it


def with_points(cells: list[str], delimiter: str, number: bool = False) -> Pointed:
    """number: the column is known to hold numbers, so what is none does not speak against decimal commas.

    >>> with_points(["19,4", "-3", "1.234,5", ""], ";")
    Pointed(cells=['19.4', '-3', '1234.5', ''], read=True, doubt='')
    >>> with_points(["19,4", "3,1", "low"], ";").doubt
    '"19,4" looks like a number with a decimal comma and "low" does not; correct it, or leave it empty if it is unknown'
    """
    if not delimiter or not any("," in cell for cell in cells):
        return Pointed(cells)
    there = [text for cell in cells if (text := cell.strip()).lower() not in MISSING]
    fitting = [text for text in there if NUMBER.fullmatch(text)]
    commas = [text for text in fitting if "," in text]
    if not commas or (not number and 2 * len(fitting) < len(there)):
        return Pointed(cells)
    odd = [text for text in there if not NUMBER.fullmatch(text) and not (number and number_of(text) is None)]
    doubt = _doubt(commas, odd, delimiter)
    return Pointed(cells, doubt=doubt) if doubt else Pointed([_with_point(cell) for cell in cells], read=True)


def _doubt(commas: list[str], odd: list[str], delimiter: str) -> str:
    example = f'"{commas[0]}" looks like a number with a decimal comma'
    if delimiter == ",":
        return f"{example}, which is not read where commas separate the cells; save the file with semicolons"
    if odd:
        return f'{example} and "{shortened(odd[0])}" does not; correct it, or leave it empty if it is unknown'
    if delimiter == "\t" and all(PERHAPS_THOUSANDS.fullmatch(text) for text in commas):
        plain = commas[0].replace(",", "")
        return f'"{commas[0]}" may be {commas[0].replace(",", ".")} or {plain}; write it without the comma'
    return ""


def _with_point(cell: str) -> str:
    text = cell.strip()
    return text.replace(".", "").replace(",", ".") if "," in text and NUMBER.fullmatch(text) else cell


def looks_decimal(cells: Sequence[str]) -> bool:
    """Most cells have a decimal comma."""
    return 2 * sum("," in cell and bool(NUMBER.fullmatch(cell.strip())) for cell in cells) > len(cells)


def reading_notes(read: Collection[str], doubts: dict[str, str]) -> tuple[str, ...]:
    """What to say about the columns of a table.

    >>> reading_notes(["crp", "age"], {})
    ('crp, age: read as numbers with decimal commas, so 19,4 is 19.4',)
    """
    together = [f"{listed(read)}: read as numbers with decimal commas, so 19,4 is 19.4"] if read else []
    return (*together, *(f"{name}: {doubt}" for name, doubt in doubts.items()))
