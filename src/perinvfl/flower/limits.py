"""Limits on every number and text that a site or a server is sent: here and nowhere else.

They are far above what an honest site sends. A site that is over one of them is named and left out.
"""

import math
import unicodedata
from typing import Any

from perinvfl.core.naming import LONGEST_NAME
from perinvfl.core.unpacking import parse_json

LONGEST_REASON = 500  # characters of why a site could not answer
LONGEST_TABLE = 2**22  # characters of a table of numbers, or of an assignment, as JSON
DEEPEST_TABLE = 16  # brackets within brackets
MOST_CASES = 1_000  # test cases
MOST_COLUMNS = 10_000  # of a table at a site
MOST_LEVELS = 10_000  # of all categories together
MOST_AXES = 8  # of a sample
MOST_INPUTS = 10**9  # numbers in a sample
MOST_OUTPUTS = 10**6  # of a model
MOST_CONTEXTS = 10_000
MOST_GROUPS = 10_000  # of samples in a test case
MOST_SAMPLES = 10**9  # that a site says it has
LARGEST_NUMBER = 1e12  # of a risk, an error, a statistic
LARGEST_SECRET = 2**14  # bytes of a key, a share or a letter of secure aggregation
FAR = 10.0  # an update that is so many times longer or shorter than the median is reported


def is_text(value: Any) -> bool:
    """Whether it can be a name: short, on one line, and written in the order in which it is read."""
    return isinstance(value, str) and len(value) <= LONGEST_NAME and not any(map(_is_odd, value))


def _is_odd(character: str) -> bool:
    """Controls, halves of characters, ends of lines, and what turns the direction of a text around."""
    turns = unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return turns or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def is_number(value: Any, most: float = LARGEST_NUMBER) -> bool:
    """Finite, and at most so far from 0."""
    return type(value) in (int, float) and -most <= value <= most


def is_score(value: Any, most: float) -> bool:
    """From 0 to `most`; NaN where a site has no sample of a test case."""
    return type(value) in (int, float) and (0 <= value <= most or value != value)


def are_texts(value: Any, most: int) -> bool:
    """A list of names, each once."""
    return isinstance(value, list) and len(value) <= most and all(map(is_text, value)) and len(set(value)) == len(value)


def is_shape(value: Any) -> bool:
    """Of one sample."""
    sized = isinstance(value, list) and 1 <= len(value) <= MOST_AXES
    return sized and all(is_whole(axis, 1, MOST_INPUTS) for axis in value) and math.prod(value) <= MOST_INPUTS


def are_counts(row: Any) -> bool:
    """How many samples each group has, or how many of them are right."""
    return isinstance(row, list) and len(row) <= MOST_GROUPS and all(map(_is_count, row))


def _is_count(value: Any) -> bool:
    return is_number(value, MOST_SAMPLES) and value >= 0


def read_json(text: Any) -> Any:
    """What a JSON text says; ValueError for one that is too long, nested too deep, or none."""
    if not isinstance(text, str) or len(text) > LONGEST_TABLE:
        raise ValueError("it is no text of a believable length")
    value = parse_json(text)
    if depth(value) > DEEPEST_TABLE:
        raise ValueError("it is nested too deep")
    return value


def depth(value: Any) -> int:
    """How many brackets lie within each other; without recursion, so that no text is too deep for it."""
    deepest, level = 0, [value]
    while level:
        level = [item for one in level for item in _items(one)]
        deepest += bool(level)
    return deepest


def _items(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def readable(text: Any, longest: int = LONGEST_REASON) -> str:
    """A text from elsewhere as one line that a terminal and a record can take."""
    start = str(text)[: longest + 1]
    line = "".join(" " if unicodedata.category(one)[0] in "CZ" else one for one in start)
    return line if len(line) <= longest else line[: longest - 4] + " ..."
