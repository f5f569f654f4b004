"""Albums: the pictures of one federation and its plan in one file, made once and read with torch alone.

Lossless. Each colour is predicted from its three neighbours before and above it (the median predictor of LOCO-I,
Weinberger et al. 2000), red and blue relative to green, and what the prediction misses is compressed.
"""

import hashlib
import io
import json
import math
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from perinvfl.core.files import read_file, write_atomically, writing
from perinvfl.core.memory import check_fits, product
from perinvfl.core.tensor_files import load_tensors
from perinvfl.core.unpacking import inflate, parse_json
from perinvfl.data.benchmarks.birds import Plan
from perinvfl.errors import UserError

PIECE = 512  # pictures compressed together: enough to learn from, and few enough to use several cores


class Album(NamedTuple):
    images: Tensor  # [K, 3, size, size] uint8
    plan: Plan
    about: dict[str, Any]  # the recipe, what it was made from, and what was counted on the way


def recipe_name(benchmark: str, recipe: dict[str, Any]) -> str:
    """A file name that two recipes never share."""
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    return f"{benchmark}-{recipe['size']}px-seed{recipe['seed']}-{digest}.album"


def write_album(path: Path, album: Album) -> None:
    missed = _missed(album.images)
    pieces = [missed[first : first + PIECE].numpy().tobytes() for first in range(0, len(missed), PIECE)]
    with ThreadPoolExecutor() as pool:
        packed = [torch.frombuffer(bytearray(piece), dtype=torch.uint8) for piece in pool.map(zlib.compress, pieces)]
    saved = {
        "about": torch.frombuffer(bytearray(json.dumps(album.about).encode()), dtype=torch.uint8),
        "shape": torch.tensor(album.images.shape),
        "pieces": packed,
        "plan": [*album.plan[:-1], *album.plan.cases.values()],
        "cases": list(album.plan.cases),
    }
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    content = buffer.getvalue()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, hashlib.sha256(content).digest() + content)


def read_album(path: Path) -> Album:
    saved = _read(path)
    try:
        shape = [int(size) for size in saved["shape"]]
        if len(shape) != 4 or min(shape) < 1 or shape[1] != 3 or shape[2] != shape[3]:
            raise ValueError(f"pictures of shape {shape}")
        check_fits(2 * product(shape), f"{path}: {shape[0]} pictures of {shape[2]} x {shape[3]} pixels")
        most = math.prod(shape[1:]) * PIECE

        def unpack(piece: Tensor) -> Tensor:
            return torch.frombuffer(bytearray(inflate(piece.numpy().tobytes(), most)), dtype=torch.uint8)

        if len(saved["pieces"]) != math.ceil(shape[0] / PIECE):
            raise ValueError(f"{len(saved['pieces'])} pieces")
        with ThreadPoolExecutor() as pool:
            missed = torch.cat(list(pool.map(unpack, saved["pieces"]))).view(shape)
        pictures, y, train, tests, *cases = saved["plan"]
        plan = Plan(pictures, y, train, tests, dict(zip(saved["cases"], cases, strict=True)))
        _check_plan(plan, shape[0])
        return Album(_restored(missed), plan, _about(saved))
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, IndexError) as error:
        raise _damaged(path, error) from None


def _check_plan(plan: Plan, count: int) -> None:
    """Every place that it names must be one of the pictures."""
    pictures, y, train, tests, cases = plan
    sound = (
        pictures.shape == (count, 4)
        and y.shape == (count,)
        and train.ndim == tests.ndim == 2
        and bool(((train >= 0) & (train < count)).all() and ((tests >= -1) & (tests < count)).all())
        and bool(((y >= 0) & (y <= 1)).all())
        and all(case.shape == tests.shape and case.dtype == torch.bool for case in cases.values())
    )
    if not sound:
        raise ValueError("its plan does not fit its pictures")


def read_about(path: Path) -> dict[str, Any]:
    """What an album says of itself."""
    try:
        return _about(_read(path))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, error) from None


def _about(saved: dict[str, Any]) -> dict[str, Any]:
    about = parse_json(saved["about"].numpy().tobytes())
    if not isinstance(about, dict):
        raise ValueError("it does not say what it is")
    return about


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_file(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) < 32 or hashlib.sha256(content[32:]).digest() != content[:32]:
        raise UserError(f"{path} is damaged (its checksum differs); delete it, and it is made again.")
    try:
        return load_tensors(content[32:])
    except ValueError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is damaged ({error}); delete it, and it is made again.")


def _missed(images: Tensor) -> Tensor:
    """[K, 3, S, S] uint8: each value less what its neighbours foretell, modulo 256."""
    coded = _less_green(images, torch.sub)
    padded = torch.nn.functional.pad(coded, (1, 0, 1, 0))  # zeros before and above
    left, above, corner = padded[..., 1:, :-1], padded[..., :-1, 1:], padded[..., :-1, :-1]
    return coded - _median(left, above, corner)


def _restored(missed: Tensor) -> Tensor:
    """The inverse of `_missed`: pixel after pixel, for all pictures at once."""
    size = missed.shape[-1]
    flat = missed.permute(2, 3, 0, 1).contiguous()  # [S, S, K, 3]: all pictures' values of one pixel lie together
    rows = torch.zeros(size + 1, size + 1, *flat.shape[2:], dtype=torch.uint8)
    for i in range(size):
        for j in range(size):
            foretold = _median(rows[i + 1, j], rows[i, j + 1], rows[i, j])
            rows[i + 1, j + 1] = flat[i, j] + foretold
    return _less_green(rows[1:, 1:].permute(2, 3, 0, 1), torch.add).contiguous()


def _median(left: Tensor, above: Tensor, corner: Tensor) -> Tensor:
    """The median of left, above and left + above − corner, without leaving uint8: the edge where there is one."""
    low, high = torch.minimum(left, above), torch.maximum(left, above)
    return torch.where(corner >= high, low, torch.where(corner <= low, high, left + above - corner))


def _less_green(images: Tensor, operation: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    red, green, blue = images.unbind(-3)
    return torch.stack([operation(red, green), green, operation(blue, green)], -3)
