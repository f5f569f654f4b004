"""Images as they come: idx files of the official data sets, and the copies of them inside the package.

The coloured digits (`digits.py`) need only every second pixel of the 60 000 official training images: 14 x 14 bytes
each. Those travel with the package, so nothing has to be downloaded. Whoever has the official files can use them
instead and gets the same tensors, checked by SHA-256.
"""

import functools
import hashlib
import math
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from perinvfl.core.files import is_there, read_file
from perinvfl.core.naming import shortened
from perinvfl.core.unpacking import gunzip
from perinvfl.errors import UserError

DigitName = Literal["mnist", "fashion"]

COUNT, SIDE = 60_000, 14
IMAGE_BYTES = COUNT * SIDE * SIDE
EMBEDDED = Path(__file__).parents[1] / "embedded"
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}

# Of the bytes in the package (zlib), and of what they unpack to: 14 x 14 images, then labels.
PACKED_SHA256 = {
    "mnist": "d954844dd35eaf1cb0eae1c0023cead1467369f87a7e8c7a6322292427a03b00",
    "fashion": "e9494086d610e6f6fd2e004137093b4d78523ec6308c13c4aa41ad986a729843",
}
CONTENT_SHA256 = {
    "mnist": "0c8b7957552979ae3263dae110eb1afd959f7d186d9839cdad5025c9eea147ee",
    "fashion": "6c7c2aa0dd4f3856117663db980e36093267502f3dd5c38d30705b2c5de413b4",
}

LARGEST = 2**28  # bytes of an unpacked idx file; the official ones have 47 million
UNSIGNED_BYTES = 0x08  # the idx type code of every official file


class Digits(NamedTuple):
    """The 60 000 official training images, every second pixel. Shared between callers: never write into them."""

    images: Tensor  # [60000, 14, 14] uint8
    labels: Tensor  # [60000] uint8, classes 0 to 9


def read_unzipped(path: Path) -> bytes:
    """The bytes of a plain or gzipped file; which one is told by its first bytes, not by its name."""
    try:
        raw = read_file(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gunzip(raw, most=LARGEST)
    except ValueError as error:
        raise UserError(f"{path} is a damaged or truncated gzip file ({error}); fetch it again.") from None


def read_idx(path: str | Path) -> Tensor:
    """Read an idx file of unsigned bytes, plain or gzipped, as a uint8 tensor of the shape in its header."""
    path = Path(path)
    raw = read_unzipped(path)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[3] == 0:
        raise UserError(f"{path} is not an idx file: it must begin with two zero bytes, a type and a number of axes.")
    code, axes = raw[2], raw[3]
    if code != UNSIGNED_BYTES:
        raise UserError(f"{path} is not an idx file of unsigned bytes: its type code is 0x{code:02x}, must be 0x08.")
    start = 4 + 4 * axes
    if len(raw) < start:
        raise UserError(f"{path} is truncated: it ends inside its header.")
    shape = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4)]
    needed, held = math.prod(shape), len(raw) - start
    if held != needed:
        problem = "is truncated" if held < needed else "is too long"
        raise UserError(f"{path} {problem}: its header asks for {needed} bytes of data, it holds {held}.")
    if needed == 0:
        raise UserError(f"{path} is empty: its header asks for the shape {shape}.")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=start).view(shape)


def pack(images: Tensor, labels: Tensor) -> bytearray:
    """From [60000, 28, 28] official images to the bytes the package holds: every second pixel, then the labels."""
    content = bytearray(IMAGE_BYTES + COUNT)
    digits = unpack(content)  # views of the bytes: written through
    digits.images.copy_(images[:, ::2, ::2])
    digits.labels.copy_(labels)
    return content


def unpack(content: bytearray) -> Digits:
    """View 60 000 images and labels in the bytes that hold them, without a copy."""
    flat = torch.frombuffer(content, dtype=torch.uint8)
    return Digits(flat[:IMAGE_BYTES].view(COUNT, SIDE, SIDE), flat[IMAGE_BYTES:])


@functools.cache
def embedded_digits(name: DigitName) -> Digits:
    """The images inside the package."""
    _check_name(name)
    path = EMBEDDED / f"{name}14.z"
    packed = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(packed).hexdigest() != PACKED_SHA256[name]:
        raise UserError(f"{path} is {'damaged' if packed else 'missing'}: reinstall perinvfl to restore it.")
    return unpack(_inflated(packed))


def _inflated(packed: bytes, piece: int = 2**16) -> bytearray:
    """A piece at a time, so that the content is in memory once."""
    content, unpacker, filled = bytearray(IMAGE_BYTES + COUNT), zlib.decompressobj(), 0
    for start in range(0, len(packed), piece):
        made = unpacker.decompress(packed[start : start + piece])
        content[filled : filled + len(made)] = made
        filled += len(made)
    return content


def official_digits(root: str | Path, name: DigitName) -> Digits:
    """The same tensors as `embedded_digits(name)`, from the official training files in the folder `root`."""
    _check_name(name)
    images_path, labels_path = official_paths(root)
    images, labels = read_idx(images_path), read_idx(labels_path)
    for path, tensor, shape in ((images_path, images, (COUNT, 28, 28)), (labels_path, labels, (COUNT,))):
        if tensor.shape != shape:
            held = list(tensor.shape)
            raise UserError(f"{path} holds the shape {held}: the official training file holds {list(shape)}.")
    content = pack(images, labels)
    found = hashlib.sha256(content).hexdigest()
    if found != CONTENT_SHA256[name]:
        other = [TITLES[key] for key, digest in CONTENT_SHA256.items() if digest == found]
        holds = f"holds {other[0]}" if other else "holds altered files"
        raise UserError(f"{root} {holds}: it must hold the official training files of {TITLES[name]}.")
    return unpack(content)


def official_paths(root: str | Path) -> tuple[Path, Path]:
    """Where the training images and labels are in a folder, in any of the usual spellings."""
    return _find(root, "train-images", "idx3-ubyte"), _find(root, "train-labels", "idx1-ubyte")


def _find(root: str | Path, stem: str, kind: str) -> Path:
    for spelling in (f"{stem}-{kind}", f"{stem}-{kind}.gz", f"{stem}.{kind}", f"{stem}.{kind}.gz"):
        path = Path(root) / spelling
        if is_there(path) and path.is_file():
            return path
    raise UserError(
        f"{shortened(str(root))} has no file {stem}-{kind} or {stem}-{kind}.gz: name the folder of the official files."
    )


def _check_name(name: str) -> None:
    if name not in TITLES:
        raise UserError(f'"{name}" is not a digit data set: must be one of {", ".join(TITLES)}.')
