"""JSON, gzip, zlib and xz from files that may be hostile: nesting and sizes are bounded, and errors are ValueErrors."""

import json
import lzma
import zlib
from typing import Any

MOST = 2**30  # bytes that a compressed file may unpack to


def parse_json(text: str | bytes) -> Any:
    """Raises ValueError for whatever is no JSON, nested too deeply, or not UTF-8."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


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
