"""JSON, gzip, zlib and xz from files that may be hostile: nesting and sizes are bounded, and errors are ValueErrors."""

import json
import lzma
import re
import zlib
from typing import Any

HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # as JSON writes the halves of a character that is written as two
MOST = 2**30  # bytes that a compressed file may unpack to


def parse_json(text: str | bytes) -> Any:
    r"""Raises ValueError for whatever is no JSON, nested too deeply, not UTF-8, or holds half a character.

    >>> parse_json(rb'["\ud83d\ude00"]') == ["\N{GRINNING FACE}"]
    True
    >>> parse_json(rb'["\ud83d"]')
    Traceback (most recent call last):
    ValueError: it holds half a character
    """
    try:
        content = text.encode() if isinstance(text, str) else text
        found = json.loads(content)
        if HALF.search(content):
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it holds half a character") from None
    return found


def gunzip(content: bytes, most: int = MOST) -> bytes:
    """All members of a gzip file.

    >>> import gzip
    >>> gunzip(gzip.compress(b"a") + gzip.compress(b"b"))
    b'ab'
    >>> gunzip(gzip.compress(b"a" * 1000), most=999)
    Traceback (most recent call last):
    ValueError: it unpacks to more than 999 bytes
    """
    parts: list[bytes] = []
    while content:
        part, content = _inflate(content, most - sum(map(len, parts)), most, wbits=31)
        parts.append(part)
        content = content.lstrip(b"\0")  # padding, which gzip allows
    return b"".join(parts)


def inflate(content: bytes, most: int = MOST) -> bytes:
    """What zlib compressed."""
    made, rest = _inflate(content, most, most, wbits=15)
    if rest:
        raise ValueError("something follows its end")
    return made


def _inflate(content: bytes, left: int, most: int, wbits: int) -> tuple[bytes, bytes]:
    unpacker = zlib.decompressobj(wbits)
    try:
        made = unpacker.decompress(content, left + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(made) > left:
        raise ValueError(f"it unpacks to more than {most} bytes")
    if not unpacker.eof:
        raise ValueError("it is cut off")
    return made, unpacker.unused_data


def unxz(content: bytes, most: int = MOST) -> bytes:
    """
    >>> unxz(lzma.compress(b"a" * 1000), most=1000) == b"a" * 1000
    True
    >>> unxz(lzma.compress(b"a" * 1001), most=1000)
    Traceback (most recent call last):
    ValueError: it unpacks to more than 1000 bytes
    """
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST)
    try:
        made = unpacker.decompress(content, most + 1)
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from None
    if len(made) > most:
        raise ValueError(f"it unpacks to more than {most} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("it is cut off, or something follows its end")
    return made
