"""Photographs: the folders of CUB-200-2011 and Places365, and one bird cut out and put before a background.

Finding files needs nothing but the standard library. Making pictures needs Pillow, which is an extra
(`pip install 'perinvfl[photos]'`) and is imported only then.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perinvfl.core.extras import how_to_install
from perinvfl.core.files import is_there
from perinvfl.core.naming import shortened
from perinvfl.data.benchmarks.birds import LAND, SIDES, WATER
from perinvfl.errors import UserError

WATERBIRDS = (
    *("albatross", "auklet", "cormorant", "frigatebird", "fulmar", "gull", "jaeger", "kittiwake", "pelican", "puffin"),
    *("tern", "gadwall", "grebe", "mallard", "merganser", "guillemot", "pacific_loon"),
)
# "tern" is part of these names too, and of no other landbird's.
MISTAKEN = ("eastern_towhee", "western_meadowlark", "western_wood_pewee")
PLACES = {LAND: ("bamboo_forest", "forest/broadleaf"), WATER: ("ocean", "lake/natural")}
MOST_PIXELS = 100_000_000  # of one photograph, unpacked
INPUT_MARGIN = 256 / 224  # the picture is resized to this many times its size, and its centre is taken


@dataclass(frozen=True)
class Bird:
    photograph: Path
    mask: Path
    waterbird: bool


@dataclass(frozen=True)
class Library:
    """All photographs there are."""

    birds: list[list[Bird]]  # per index range of the CUB training split
    skipped: list[int]  # birds of each range without a photograph or a mask
    backgrounds: tuple[list[Path], list[Path]]  # land, water
    absent: list[str]  # kinds of background that are not there at all
    fingerprint: str  # of all names and sizes of files


def find_photographs(cub: Path, places: Path, ranges: Sequence[Sequence[int]], corrected: bool) -> Library:
    """List what can be used; ranges count the photographs of the training split from 0, both ends included."""
    names = _training_names(cub)
    last = max(range_[1] for range_ in ranges)
    if last >= len(names):
        raise UserError(
            f"{cub}: the training split has {len(names)} photographs and the index ranges go up to {last}: "
            f"{last + 1 - len(names)} are missing."
        )
    segmentations = next(
        (folder for folder in (cub / "segmentations", cub.parent / "segmentations") if folder.is_dir()), None
    )
    if segmentations is None:
        raise UserError(
            f"{cub / 'segmentations'} is not a folder; the masks of CUB-200-2011 come as a file of their own."
        )
    birds, skipped, sizes = [], [], []
    for first, last in ranges:
        found = []
        for name in names[first : last + 1]:
            pair = cub / "images" / name, (segmentations / name).with_suffix(".png")
            try:
                sizes += [f"{name} {path.stat().st_size}" for path in pair]
            except FileNotFoundError:
                continue
            found.append(Bird(*pair, is_waterbird(name, corrected)))
        birds.append(found)
        skipped.append(last + 1 - first - len(found))
    backgrounds, absent = _backgrounds(places)
    sizes += [f"{path.parent.name}/{path.name} {path.stat().st_size}" for side in backgrounds for path in side]
    return Library(birds, skipped, backgrounds, absent, hashlib.sha256("\n".join(sizes).encode()).hexdigest()[:16])


def is_waterbird(name: str, corrected: bool) -> bool:
    """By its species, the folder of a photograph: 001.Black_footed_Albatross."""
    species = name.split("/")[0].lower()
    return any(part in species for part in WATERBIRDS) and not (corrected and any(m in species for m in MISTAKEN))


def _training_names(cub: Path) -> list[str]:
    """Photographs of the training split, in the order of images.txt."""
    if not is_there(cub) or not cub.is_dir():
        raise UserError(f"{shortened(str(cub))} is not a folder; give the folder CUB_200_2011.")
    tables = []
    for file in ("images.txt", "train_test_split.txt"):
        try:
            lines = (cub / file).read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError):
            raise UserError(f"{cub / file} cannot be read; give the folder CUB_200_2011, which holds it.") from None
        try:
            tables.append(dict(line.split(maxsplit=1) for line in lines if line.strip()))
        except ValueError:
            raise UserError(f"{cub / file} is not a list of numbers and names; fetch CUB-200-2011 again.") from None
    names, splits = tables
    return [name.strip() for number, name in names.items() if splits.get(number, "0").strip() == "1"]


def _backgrounds(places: Path) -> tuple[tuple[list[Path], list[Path]], list[str]]:
    """Pooled by side, in the order of their names; whichever of the official layouts the folder has."""
    if not is_there(places) or not places.is_dir():
        raise UserError(f"{shortened(str(places))} is not a folder; give the folder of Places365.")
    sides: dict[int, list[Path]] = {LAND: [], WATER: []}
    absent = []
    for side, kinds in PLACES.items():
        for kind in kinds:
            folder = next((folder for folder in _candidates(places, kind) if folder.is_dir()), None)
            found = (
                [] if folder is None else sorted(p for p in folder.iterdir() if p.suffix.lower() in (".jpg", ".jpeg"))
            )
            sides[side] += found
            absent += [] if found else [kind]
        if not sides[side]:
            raise UserError(f"{places} holds no photograph of {SIDES[side]}; needed are {' and '.join(kinds)}.")
    return (sides[LAND], sides[WATER]), absent


def _candidates(places: Path, kind: str) -> Iterable[Path]:
    """b/bamboo_forest as in the large and the 256-pixel archives, or bamboo_forest as in the simple one."""
    for root in (places, *(places / part for part in ("data_large", "data_256", "data_large_standard", "train"))):
        yield root / kind[0] / kind
        yield root / kind.replace("/", "-")
        yield root / kind.replace("/", "_")


def make_pictures(
    pairs: Sequence[tuple[Bird, Path]], size: int, progress: Callable[[int], None] | None = None
) -> Tensor:
    """[K, 3, size, size] uint8: each bird before its background."""
    image = pillow()
    pictures = torch.empty(len(pairs), 3, size, size, dtype=torch.uint8)

    def make(number: int) -> None:
        bird, background = pairs[number]
        try:
            pictures[number] = picture(image, bird, background, size)
        except UserError:
            raise
        except Exception as error:  # each of Pillow's readers has its own
            raise UserError(f"{bird.photograph} or {background} cannot be read as a photograph: {error}.") from None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, _ in enumerate(pool.map(make, range(len(pairs))), start=1):
            if progress is not None:
                progress(done)
    return pictures


def picture(image: Any, bird: Bird, background: Path, size: int) -> Tensor:
    """[3, size, size] uint8: composed at the bird's own size, then made as small as the model wants it."""
    with opened(image, bird.photograph) as file:
        photograph = file.convert("RGB")
    with opened(image, bird.mask) as file:
        mask = pixels(file.convert("L")).double() / 255  # [H, W, 1]
    with opened(image, background) as file:
        behind = cover(image, file.convert("RGB"), photograph.size)
    if mask.shape[:2] != (photograph.height, photograph.width):
        raise UserError(f"{bird.mask} is not of the size of its photograph.")
    composed = compose(pixels(photograph), mask, pixels(behind))
    whole = image.frombytes("RGB", photograph.size, composed.numpy().tobytes())
    side = round(size * INPUT_MARGIN)
    shrunk = pixels(whole.resize((side, side), image.Resampling.BILINEAR))
    edge = (side - size) // 2
    return shrunk[edge : edge + size, edge : edge + size].permute(2, 0, 1)


def opened(image: Any, path: Path) -> Any:
    """A JPEG or PNG file, told by its content: Pillow would hand PostScript to a program that runs it."""
    file = image.open(path, formats=("JPEG", "PNG"))
    if file.width * file.height > MOST_PIXELS:
        file.close()
        raise ValueError(f"{file.width} x {file.height} pixels are more than {MOST_PIXELS}")
    return file


def compose(bird: Tensor, mask: Tensor, background: Tensor) -> Tensor:
    """round(bird · mask) + round(background · (1 − mask)), uint8 [H, W, 3]."""
    return ((bird * mask).round() + (background * (1 - mask)).round()).clamp(max=255).to(torch.uint8)


def cover(image: Any, photograph: Any, size: tuple[int, int]) -> Any:
    """The centre of a photograph, as large as it can be with the shape of `size`, in that size (Lanczos)."""
    scale = min(photograph.width / size[0], photograph.height / size[1])
    width, height = size[0] * scale, size[1] * scale
    left, top = max(0.0, (photograph.width - width) / 2), max(0.0, (photograph.height - height) / 2)
    box = (left, top, photograph.width - left, photograph.height - top)
    return photograph.resize(size, image.Resampling.LANCZOS, box=box)


def pixels(photograph: Any) -> Tensor:
    """[H, W, channels] uint8."""
    flat = torch.frombuffer(bytearray(photograph.tobytes()), dtype=torch.uint8)
    return flat.view(photograph.height, photograph.width, -1)


def pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UserError(f"Photographs need Pillow: {how_to_install('photos')}.") from None
    return Image
