"""Own data from files, one form of file a module: tables, arrays, folders of photographs."""

from pathlib import Path

from perinvfl.data.own.readers.arrays import ARRAYS, from_arrays, numbers_of, read_arrays, read_npz, read_safetensors
from perinvfl.data.own.readers.photographs import photo_files, read_photo, read_photos
from perinvfl.data.own.readers.tables import TABLES, read_csv, read_features, read_parquet
from perinvfl.data.own.rows import Columns, Found
from perinvfl.errors import UserError

__all__ = [
    "ARRAYS",
    "TABLES",
    "from_arrays",
    "numbers_of",
    "photo_files",
    "read",
    "read_arrays",
    "read_features",
    "read_photo",
]


def read(path: Path, columns: Columns, image_size: int, colour: bool) -> Found:
    """Whatever lies at a path."""
    if path.is_dir():
        return read_photos(path, image_size, colour)
    readers = {
        ".csv": read_csv,
        ".tsv": read_csv,
        ".parquet": read_parquet,
        ".pq": read_parquet,
        ".npz": read_npz,
        ".safetensors": read_safetensors,
    }
    if path.suffix.lower() not in readers:
        raise UserError(f"{path} is of no known kind: give a folder of photographs or {', '.join(readers)}.")
    try:
        return readers[path.suffix.lower()](path, columns)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
