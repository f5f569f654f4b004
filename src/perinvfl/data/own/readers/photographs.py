"""Folders of photographs, read by Pillow."""

from pathlib import Path

import torch
from torch import Tensor

from perinvfl.data.own.readers.libraries import need
from perinvfl.data.own.rows import BadData, Fault, Found
from perinvfl.errors import UserError

PHOTOS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
# Told by a file's content, whatever its name. Of others, Pillow would hand PostScript to a program that runs it.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
MOST_PIXELS = 100_000_000  # of one photograph, unpacked
NOT_DATA = ("thumbs.db", "desktop.ini")  # what systems leave in folders, as are names that begin with a dot


class BadPhoto(UserError):
    """A file that is no photograph, or a damaged one."""


def photo_files(folder: Path) -> list[Path]:
    """Every file below a folder that a person put there, in a fixed order."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        path
        for path in found
        if path.name.lower() not in NOT_DATA
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def read_photo(path: Path, size: int, colour: bool) -> Tensor:
    """[3 or 1, size, size] between 0 and 1."""
    image = need("PIL.Image", "photos", "A photograph")
    ops = need("PIL.ImageOps", "photos", "A photograph")
    if path.suffix.lower() not in PHOTOS:
        raise BadPhoto(f"is not a photograph (known are {', '.join(PHOTOS)})")
    try:
        image.init()
        with image.open(path, formats=[name for name in FORMATS if name in image.OPEN]) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise ValueError(f"{opened.width} x {opened.height} pixels are more than {MOST_PIXELS}")
            upright = ops.exif_transpose(opened).convert("RGB" if colour else "L")
            fitted = ops.fit(upright, (size, size))  # resized to cover the square, then its middle
    except Exception as error:  # each of the readers has its own
        raise BadPhoto(f"cannot be read as a photograph ({error})") from None
    pixels = torch.frombuffer(bytearray(fitted.tobytes()), dtype=torch.uint8)
    return pixels.view(size, size, -1).permute(2, 0, 1) / 255


def read_photos(folder: Path, size: int, colour: bool) -> Found:
    """client/context/class/any name.png: [n, 3 or 1, size, size] between 0 and 1."""
    need("PIL.Image", "photos", "A folder of photographs")  # before any photograph is blamed
    files = photo_files(folder)
    if not files:
        raise BadData(str(folder), [Fault("", "", "there is no photograph in it; they lie in client/context/class/")])
    names = [path.relative_to(folder) for path in files]
    x = torch.zeros(len(files), 3 if colour else 1, size, size)
    faults, faulty = [], set()

    def wrong(i: int, what: str) -> None:
        faults.append(Fault(str(names[i]), "", what))
        faulty.add(i)

    for i, path in enumerate(files):
        if len(names[i].parts) != 4:
            wrong(i, "does not lie in client/context/class/")
        else:
            try:
                x[i] = read_photo(path, size, colour)
            except BadPhoto as error:
                wrong(i, str(error))
    parts = [(*name.parts, "?", "?", "?")[:3] for name in names]
    return Found(
        kind="folder of photographs",
        x=x,
        labels=[part[2] for part in parts],
        client=[part[0] for part in parts],
        context=[part[1] for part in parts],
        features=(),
        place=lambda i: str(names[i]),
        faults=tuple(faults),
        faulty=frozenset(faulty),
        named=True,
    )
