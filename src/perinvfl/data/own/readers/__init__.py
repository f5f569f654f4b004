"""Own data from files, one form of file a module: tables, arrays, folders of photographs."""

from pathlib import Path

from perinvfl.data.own.readers.arrays import (
    ARRAYS,
    from_arrays,
    numbers_of,
    read_arrays,
    read_npz,
    read_safetensors,
    table_of,
)
from perinvfl.data.own.readers.columns import ALL, Column, level_names, names_of, numbers_in
from perinvfl.data.own.readers.decimal_commas import Pointed, reading_notes, with_points
from perinvfl.data.own.readers.frames import (
    TABLES_IN_MEMORY,
    as_column,
    as_frame,
    column_names,
    frame_kind,
    read_frame,
    select,
    why_no_frame,
)
from perinvfl.data.own.readers.photographs import BadPhoto, photo_files, read_photo, read_photos
from perinvfl.data.own.readers.tables import TABLES, Cells, read_csv, read_parquet, table_cells, whole_table
from perinvfl.data.own.readers.utf8 import why_not_utf8
from perinvfl.data.own.rows import Columns, Found
from perinvfl.errors import UserError

__all__ = [
    "ALL",
    "ARRAYS",
    "TABLES",
    "TABLES_IN_MEMORY",
    "BadPhoto",
    "Cells",
    "Column",
    "Pointed",
    "as_column",
    "as_frame",
    "column_names",
    "frame_kind",
    "from_arrays",
    "level_names",
    "names_of",
    "numbers_in",
    "numbers_of",
    "photo_files",
    "read",
    "read_arrays",
    "read_frame",
    "read_photo",
    "reading_notes",
    "select",
    "shard_files",
    "table_cells",
    "table_of",
    "whole_table",
    "why_no_frame",
    "why_not_utf8",
    "with_points",
]


SHARDS = (".parquet", ".pq", ".npz")


def shard_files(folder: Path) -> list[Path]:
    """The shards in a folder, in a fixed order; none where it holds something else, such as photographs."""
    if not folder.is_dir():
        return []
    files = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    shards = [path for path in files if path.suffix.lower() in SHARDS]
    if not shards:
        return []
    if len(shards) < len(files):
        other = next(path for path in files if path not in shards)
        raise UserError(f"{folder} holds shards and {other.name}; a folder of shards holds nothing else.")
    kinds = {".npz" if path.suffix.lower() == ".npz" else ".parquet" for path in shards}
    if len(kinds) > 1:
        raise UserError(f"{folder} holds Parquet tables and NumPy archives; all shards must be of one kind.")
    return shards


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
