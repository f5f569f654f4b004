"""Hostile files, made as an attacker would: pickles that run code when they are opened, and files that grow."""

import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy
import torch


class Runs:
    """A pickle of it creates a folder when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def with_members(archive: bytes, changed: dict[str, bytes], compressed: bool = False) -> bytes:
    """A zip archive with some members replaced or added, by the end of their names, and right checksums."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(buffer, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        names = {name.partition("/")[2]: old.read(name) for name in old.namelist()} | changed
        for name, content in names.items():
            kind = zipfile.ZIP_DEFLATED if compressed and name in changed else zipfile.ZIP_STORED
            new.writestr(zipfile.ZipInfo(f"{root}/{name}"), content, kind)
    return buffer.getvalue()


def evil_torch_file(mark: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save({"0.weight": Runs(mark)}, buffer)
    return buffer.getvalue()


def torch_file_of_lists_in_lists(doublings: int = 60) -> bytes:
    """A dictionary with a list that holds one list twice, which holds one list twice, and so on."""
    held: list[Any] = []
    for _ in range(doublings):
        held = [held, held]
    buffer = io.BytesIO()
    torch.save({"0.weight": held}, buffer)
    return buffer.getvalue()


def evil_pickle(mark: Path) -> bytes:
    return pickle.dumps(Runs(mark))


def evil_array(mark: Path) -> bytes:
    buffer = io.BytesIO()
    numpy.save(buffer, numpy.array([Runs(mark)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def evil_npz(mark: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x.npy", evil_array(mark))
        archive.writestr("y.npy", evil_array(mark))
    return buffer.getvalue()


def array_header(shape: tuple[int, ...]) -> bytes:
    """Of a .npy file that claims this shape."""
    text = repr({"descr": "<f8", "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npz_that_claims(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, array_header(shape) + b"\0" * 64)
    return buffer.getvalue()


def npz_bomb(members: int) -> bytes:
    """Each member is to unpack to 4 GB, as the directory says."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(members):
            archive.writestr(f"x{number}.npy", array_header((2**29 - 100,)) + bytes(2**16))
    content = bytearray(buffer.getvalue())
    at = content.find(b"PK\x01\x02")
    while at >= 0:
        content[at + 24 : at + 28] = struct.pack("<I", 2**32 - 2)
        at = content.find(b"PK\x01\x02", at + 4)
    return bytes(content)


def png_bomb(side: int) -> bytes:
    """A picture of side x side pixels in a few kilobytes, with right checksums."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000), 9)) + chunk(b"IEND", b"")


def postscript(mark: Path) -> bytes:
    """What Ghostscript would run, if Pillow were allowed to call it."""
    return (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"
        + f"({mark}) (w) file dup (x) writestring closefile showpage\n%%EOF\n".encode()
    )


def deep_json(depth: int = 100_000) -> bytes:
    return json.dumps({"event": "start"}).encode()[:-1] + b', "a": ' + b"[" * depth + b"]" * depth + b"}\n"
