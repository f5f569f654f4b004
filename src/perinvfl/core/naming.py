"""What clients, contexts, classes and columns are called: the names a person brought, else numbers counted from 1."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import PureWindowsPath  # which reads the paths of other systems, too
from typing import Any

from perinvfl.errors import UserError

# Control characters, turns of the writing direction, and what no encoding or no SVG file has: halves of characters,
# and two that are none.
STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
HALF = re.compile("[\ud800-\udfff]")

LONGEST_NAME = 200  # characters of the name of a client, a context, a class, a column or a test case


def name_of(value: Any) -> str:
    """A client, context or class as text: 2021.0 and 2021 are the same name.

    >>> name_of(2021.0), name_of(" North ")
    ('2021', 'North')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def one_spelling(names: Sequence[str | int], as_text: bool = False) -> tuple[str | int, ...]:
    """Names as a run is called by them: 2023 and "2023" are the same.

    >>> one_spelling(["2023", 2022, "007", "north"]), one_spelling([2023], as_text=True)
    ((2023, 2022, '007', 'north'), ('2023',))
    """
    texts = [name_of(name) for name in names]
    return tuple(text if as_text or not text.isdecimal() or str(int(text)) != text else int(text) for text in texts)


def in_short(value: Any, most: int = 200) -> str:
    """A value of any kind in a sentence, however long or deep it is.

    >>> in_short("rc_mnist"), in_short(10**30), in_short([0.1, 2])
    ('"rc_mnist"', '1000000000000000000000000000000', '[0.1, 2]')
    >>> in_short((0.1, 2))  # as in a file
    '[0.1, 2]'
    >>> in_short(10**5000), in_short("x" * 1000, most=20)
    ('a number of more than 4000 digits', '"xxxxxxxxx... (1002 characters)')
    """
    try:
        text = f'"{value}"' if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)
    except ValueError:  # Python writes whole numbers of up to some 4000 digits
        return "a number of more than 4000 digits" if isinstance(value, int) else "values too large to be shown"
    except RecursionError:
        return "values too deeply nested to be shown"
    return shortened(text, most)


def visible(text: str) -> str:
    """Text for a terminal: characters that would steer it, or cannot be written, as escapes; lines stay lines.

    >>> visible("glucose [mg/dl]"), visible("a\\x1b[2Jb"), visible("é\\tx\\n")
    ('glucose [mg/dl]', 'a\\\\x1b[2Jb', 'é\\tx\\n')
    """
    return STEERING.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def all_visible(value: Any) -> Any:
    """Plain values with every text in them as `visible` makes it.

    >>> all_visible({"names": ["a", "b\\x1b"], "at": 3})
    {'names': ['a', 'b\\\\x1b'], 'at': 3}
    """
    if isinstance(value, dict):
        return {all_visible(key): all_visible(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [all_visible(part) for part in value]
    return visible(value) if isinstance(value, str) else value


def shortened(text: str, most: int = 200) -> str:
    """
    >>> shortened("label"), shortened("x" * 1000, most=20)
    ('label', 'xxxxxxxxxx... (1000 characters)')
    """
    return text if len(text) <= most else f"{text[: most // 2]}... ({len(text)} characters)"


def is_whole_text(text: str) -> bool:
    r"""Whether a text can be written to a file: halves of characters come from damaged arrays and names of folders.

    >>> is_whole_text("é \N{GRINNING FACE}"), is_whole_text("caf\udce9")
    (True, False)
    """
    return HALF.search(text) is None


def listed(names: Iterable[str], most: int = 6) -> str:
    """
    >>> listed(["a", "b", "c"]), listed("abcdefgh", most=3)
    ('a, b, c', 'a, b, c and 5 more')
    """
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def without_folder(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of data for other people's eyes: of a file its name, and not where it lies on somebody's machine.

    >>> without_folder({"path": "/home/ann/past.csv"}), without_folder({"path": r"C:\\ann\\past.csv"})
    ({'path': 'past.csv'}, {'path': 'past.csv'})
    """
    path = settings.get("path")
    return settings | {"path": PureWindowsPath(path).name} if path else settings


def with_and(names: Iterable[str], most: int | None = None) -> str:
    """In the middle of a sentence; most: that are named, else all.

    >>> with_and(["a"]), with_and(["a", "b", "c"]), with_and("abcd", most=2)
    ('a', 'a, b and c', 'a, b and ...')
    """
    names = list(names)
    *first, last = [*names[:most], "..."] if most is not None and len(names) > most else names
    return f"{', '.join(first)} and {last}" if first else last


def words_of(name: str) -> list[str]:
    """
    >>> words_of("PatientID"), words_of("row_nr"), words_of("Year 2")
    (['patient', 'id'], ['row', 'nr'], ['year', '2'])
    """
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+", name)]


# Words that say how a thing is written down, not what it is: "Hospital name" is a hospital.
WRITTEN = ("name", "names", "id", "ids", "code", "nr", "no", "number", "key")


def thing_of(name: str) -> list[str]:
    """What a column is about: its words, without those that say how it is written down.

    >>> thing_of("Hospital name"), thing_of("site_id"), thing_of("name"), thing_of("year_of_visit")
    (['hospital'], ['site'], ['name'], ['year', 'of', 'visit'])
    """
    words = words_of(name)
    return [word for word in words if word not in WRITTEN] or words


def plural(thing: str) -> str:
    """
    >>> plural("hospital"), plural("city"), plural("bus"), plural("Klinik")
    ('hospitals', 'cities', 'buses', 'Kliniks')
    """
    if re.search(r"[^aeiou]y$", thing):
        return f"{thing[:-1]}ies"
    return f"{thing}es" if re.search(r"(s|x|z|ch|sh)$", thing) else f"{thing}s"


def written_out(number: float) -> str:
    """
    >>> written_out(1e6), written_out(0.5), written_out(1e30)
    ('1 000 000', '0.5', '1e+30')
    """
    whole = number == int(number) and abs(number) < 1e12 if abs(number) < 1e300 else False
    return f"{int(number):,}".replace(",", " ") if whole else f"{number:g}"


def counted(number: int, thing: str) -> str:
    """
    >>> counted(1, "client"), counted(2, "client")
    ('1 client', '2 clients')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def client_names(given: Sequence[str], clients: int) -> list[str]:
    """
    >>> client_names((), 2)
    ['Client 1', 'Client 2']
    """
    return list(given) or [f"Client {number + 1}" for number in range(clients)]


def client_named(asked: object, names: Collection[str]) -> str:
    """The name of a client that may have been asked for by the number in it.

    >>> client_named(2, ["Client 1", "Client 2"]), client_named("2", ["2", "3"])
    ('Client 2', '2')
    """
    numbered = f"Client {asked}"
    return numbered if str(asked) not in names and numbered in names else str(asked)


def context_names(given: Sequence[str], contexts: int) -> list[str]:
    """Of the training contexts, by number.

    >>> context_names(("2021",), 2)
    ['2021', 'context 2']
    """
    return [given[k] if k < len(given) else f"context {k + 1}" for k in range(contexts)]


def class_names(given: Sequence[str], classes: int) -> list[str]:
    """
    >>> class_names((), 2)
    ['0', '1']
    """
    return list(given) or [str(number) for number in range(classes)]


def find_client(asked: str, names: Sequence[str]) -> int:
    """Which client is meant: by its name, or by its number counted from 1 as figures show it.

    >>> find_client("2", ["Client 1", "Client 2"]), find_client("North", ["South", "North"])
    (1, 1)
    """
    if asked in names:
        return list(names).index(asked)
    if asked.isdigit() and 1 <= int(asked) <= len(names):
        return int(asked) - 1
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    raise UserError(f"--client {asked} is not one of the {len(names)} clients: {shown} (or a number from 1).")
