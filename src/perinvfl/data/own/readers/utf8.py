"""Text that is not UTF-8, as a sentence says it."""

import codecs
from pathlib import Path

SAVE_IT = 'save it as "CSV UTF-8", which spreadsheet programs offer among the file types'


def why_not_utf8(path: Path) -> str:
    """The end of a sentence that begins with the file's name."""
    with open(path, "rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return f"is UTF-16 text and not UTF-8; {SAVE_IT}"
        file.seek(0)
        line = next((number for number, text in enumerate(file, start=1) if not _is_utf8(text)), 1)
    return f"is not UTF-8 text: line {line} holds a letter in another encoding, such as that of Windows; {SAVE_IT}"


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
        return True
    except UnicodeDecodeError:
        return False
