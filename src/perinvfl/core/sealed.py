"""Files with a checksum over all of them, and a header that can be read alone: two lines, then the content.

The first line has the checksum of the second, the second is JSON with the checksum of the content and what the file
says of others. Files of earlier versions are a checksum of 32 bytes and the content. Does not import torch.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from perinvfl.core.files import check_is_file, read_file
from perinvfl.core.unpacking import parse_json
from perinvfl.errors import UserError

FIRST = b"perinvfl sealed file 2 "
DIGEST = 64  # hex digits of a checksum
MOST_HEADER = 16_000_000
About = dict[str, Any]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def seal(content: bytes, about: About) -> bytes:
    header = json.dumps({"content": digest(content), **about}, separators=(",", ":")).encode()
    return FIRST + digest(header).encode() + b"\n" + header + b"\n" + content


def read_sealed(path: Path, what: str, remedy: str) -> tuple[About, bytes]:
    """What a file says of others, and its content; a damaged one is an error that says what to do."""
    content = read_file(path)
    if not content.startswith(FIRST):
        if len(content) < 32 or hashlib.sha256(content[32:]).digest() != content[:32]:
            raise UserError(f"The {what} {path} is damaged (its checksum differs); {remedy}.")
        return {}, content[32:]
    first, header, rest = [*content.split(b"\n", 2), b"", b""][:3]
    about = _parsed(header) if first[len(FIRST) :] == digest(header).encode() else None
    if about is None or about["content"] != digest(rest):
        raise UserError(f"The {what} {path} is damaged (its checksum differs); {remedy}.")
    return about, rest


def read_about(path: Path) -> About | None:
    """What a file says of others, without reading the rest; None where it is absent, older or damaged there."""
    try:
        check_is_file(path)
        with open(path, "rb") as file:
            first = file.read(len(FIRST) + DIGEST + 1)
            header = file.readline(MOST_HEADER) if first.startswith(FIRST) else b""
    except OSError:
        return None
    if not header or first[len(FIRST) : -1] != digest(header[:-1]).encode():
        return None
    return _parsed(header)


def _parsed(header: bytes) -> About | None:
    """None where it is not what `seal` writes, however right its checksum is."""
    try:
        about = parse_json(header)
    except ValueError:
        return None
    return about if isinstance(about, dict) and isinstance(about.get("content"), str) else None


def is_sealed(path: Path) -> bool:
    """Whether this package wrote the file, whole or damaged behind its first line."""
    try:
        check_is_file(path)
        with open(path, "rb") as file:
            if file.read(len(FIRST)) == FIRST:
                return True
        content = path.read_bytes()
    except OSError:
        return False
    return len(content) >= 32 and hashlib.sha256(content[32:]).digest() == content[:32]
